"""A reader between the IO thread and the learner's: batches that came, how many more may come. Decodes no batch."""

from __future__ import annotations

import enum
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.connection import Connection, Failure
from async_loader.feeder.client.planes import Plane
from async_loader.feeder.client.refusals import error_of
from async_loader.feeder.client.waiting import News
from async_loader.feeder.wire import (
    Batch,
    CloseReader,
    Done,
    End,
    Error,
    ErrorCode,
    Message,
    OpenReader,
    Pull,
    Reader,
    Return,
    RowLayout,
    schema_of,
)  # fmt: skip
from async_loader.lifecycle import Bell
from async_loader.schema import Schema

ASK_AGAIN_S = 5.0
LATER_S, LATER_MOST_S = 0.05, 1.0
"""Until OPEN_READER is sent again, when the server says that it may work later: a table without a schema."""
REMIND_S = 5.0
"""After which a PULL that nothing came for is sent again: its connection may have been another. Grants are absolute."""
REDELIVERED = 0x02
_NO_SLOTS = np.empty(0, np.uint32)


class Phase(enum.Enum):
    WANTED = "wanted"
    OPENING = "opening"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Came:
    """One batch, as it came. ``lease`` is for `ReaderLine.give_back`, ``opening`` says in which session it counts, ``server``
    whose ids it has; see `Connection.servers`.
    """

    body: Batch
    layout: RowLayout
    lease: int | None
    opening: int
    server: int


class ReaderLine:
    """One reader of one table.

    Parameters
    ----------
    number : int
    wanted : OpenReader
    prefetch : int
        Batches that may be on their way or wait here.
    """

    def __init__(self, number: int, wanted: OpenReader, prefetch: int) -> None:
        self.number, self.wanted, self.prefetch = number, wanted, prefetch
        self.lock = threading.Lock()
        self.news = News(self.lock)
        self.bell: Bell | None = None
        self.phase = Phase.WANTED
        self.schema: Schema | None = None
        self.leased = False
        self.batches = self.redelivered = 0
        self.inbox: deque[Came] = deque()
        self.complaints: deque[AsyncLoaderError] = deque()
        self.failure: Failure | None = None
        self._ended_after: int | None = None
        self._layout: RowLayout | None = None
        self._opening = self._server = 0
        self._asked = 0
        self._ask_at: float | None = None
        self._later_s = LATER_S
        self._came = self._granted = self._told = 0
        self._remind_at: float | None = None
        self._returns: list[int] = []

    # -- under the lock, any thread ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.phase is Phase.READY

    @property
    def due(self) -> bool:
        """Whether more batches are asked for: by halves of what may be ahead, as each PULL wakes two threads and a server."""
        untold = self._granted - self._told
        return untold > 0 and (2 * untold >= self.prefetch or not self.inbox)

    @property
    def ended(self) -> bool:
        """Nothing more comes, and everything that came was taken."""
        return self._ended_after is not None and not self.inbox and self._came >= self._ended_after

    def on_news(self, bell: Bell | None) -> None:
        """Ring this from now on, or nothing."""
        self.bell = bell

    def next(self) -> Came | None:
        """The next batch. Another one is asked for in its place: also of one from before, as `_opened` counted it."""
        if not self.inbox:
            return None
        self._granted += 1
        return self.inbox.popleft()

    def give_back(self, came: Came) -> None:
        """Done with it, as its lease goes."""
        if came.lease is not None and came.opening == self._opening:
            self._returns.append(came.lease)

    def close(self) -> None:
        """CLOSE_READER."""
        if self.phase in (Phase.CLOSED, Phase.FAILED):
            return
        self.inbox.clear()
        self._ask_at = None
        self.phase = Phase.CLOSING if self.phase is not Phase.WANTED else Phase.CLOSED

    # -- the IO thread ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Line`. Grants count anew; leases of an earlier session are others' by now."""
        with self.lock:
            if self.phase is Phase.CLOSING:
                self.phase = Phase.CLOSED
            elif self.phase in (Phase.OPENING, Phase.READY):
                self.phase = Phase.WANTED
            if self.leased:
                self.inbox.clear()
            self._returns.clear()
            if self._ended_after is not None:  # what the end was after has come, or comes no more
                self._ended_after = self._came
            self._ask_at = self._remind_at = None
        self._ring()

    def step(self, now: float, port: Connection) -> float | None:
        """See `Line`."""
        if not port.is_open:
            return None
        with self.lock:
            self._ask(now, port)
            if self.phase is Phase.READY:
                if self._returns:
                    leases, self._returns = np.array(self._returns, np.uint64), []
                    port.send(Plane.PULL, Return(leases), self.number, port.sequence())
                if self.due or (self._remind_at is not None and now >= self._remind_at):
                    self._told, self._remind_at = self._granted, now + REMIND_S
                    port.send(Plane.PULL, Pull(self._granted, _NO_SLOTS), self.number, port.sequence())
            dues = (self._ask_at, self._remind_at if self.phase is Phase.READY else None)
            return min((due for due in dues if due is not None), default=None)

    def _ask(self, now: float, port: Connection) -> None:
        if self._ask_at is not None and now < self._ask_at:
            return
        over = self._ended_after is not None
        if self.phase is Phase.CLOSING:
            body: OpenReader | CloseReader = CloseReader()
        elif self.phase in (Phase.WANTED, Phase.OPENING) and not over:
            body, self.phase, self._server = self.wanted, Phase.OPENING, port.servers
        else:
            self._ask_at = None
            return
        self._asked, self._ask_at = port.sequence(), now + ASK_AGAIN_S
        port.send(Plane.CONTROL, body, self.number, self._asked)

    def take(self, message: Message, now: float) -> None:
        """See `Line`."""
        body = message.body
        with self.lock:
            if isinstance(body, Batch):
                self._arrived(message, body, now)
            elif isinstance(body, Reader):
                if self.phase is Phase.OPENING and message.sequence == self._asked:
                    self._opened(body)
            elif isinstance(body, End):
                self._ended_after = body.count if self.phase is Phase.READY else self._came
            elif isinstance(body, Error):
                self._refused(message, body, now)
            elif isinstance(body, Done) and self.phase is Phase.CLOSING:
                self.phase, self._ask_at, self._remind_at = Phase.CLOSED, None, None
        self._ring()

    def end(self, failure: Failure) -> None:
        """See `Line`."""
        with self.lock:
            self.failure = self.failure or failure
            self.phase = Phase.FAILED if self.phase is not Phase.CLOSED else self.phase
        self._ring()

    def _ring(self) -> None:
        with self.lock:
            if self.bell is not None:
                self.bell.ring()
        self.news.ring()

    def _opened(self, body: Reader) -> None:
        self.schema, self.leased = schema_of(body.schema), body.leased
        self._layout = RowLayout.of(self.schema, headed=False)
        self._opening += 1
        self._came = self._told = 0
        self._granted = self.prefetch - len(self.inbox)
        self._ask_at, self._later_s = None, LATER_S
        self.phase = Phase.READY

    def _arrived(self, message: Message, body: Batch, now: float) -> None:
        # A batch that is there already was sent twice; one of an earlier opening was drawn for nobody.
        if self.phase is not Phase.READY or message.sequence < self._came or self._layout is None:
            return
        self._came = message.sequence + 1
        self.batches += 1
        self.redelivered += bool(message.flags & REDELIVERED)
        lease = message.sequence if self.leased else None
        self.inbox.append(Came(body, self._layout, lease, self._opening, self._server))
        self._remind_at = now + REMIND_S if self._granted > self._came else None

    def _refused(self, message: Message, error: Error, now: float) -> None:
        if error.code == ErrorCode.UNKNOWN_READER:
            if self.phase is Phase.READY:
                self.phase, self._ask_at = Phase.WANTED, None
        elif self.phase is Phase.CLOSING:
            self.phase, self._ask_at = Phase.CLOSED, None
        elif self.phase is Phase.OPENING and error.retryable and error.code != ErrorCode.LIMIT:  # that is ours to change
            if error.code == ErrorCode.TIMEOUT and self.wanted.timeout_s is not None:
                self.complaints.append(error_of(error, f"table {self.wanted.table!r}"))
            self._ask_at, self._later_s = now + self._later_s, min(2 * self._later_s, LATER_MOST_S)
        elif error.retryable and self.phase is not Phase.OPENING:
            self.complaints.append(error_of(error, f"table {self.wanted.table!r}"))
        else:
            self.failure = lambda: error_of(error, f"table {self.wanted.table!r}")
            self.phase = Phase.FAILED
