"""A reader between the IO thread and the learner's: it opens the reader, and pulls its batches.

::

    WANTED ─OPEN_READER, READER─▶ READY ─CLOSE_READER─▶ CLOSING ─DONE─▶ CLOSED
      ▲                  │ shm    ▲ │          any but CLOSED ──▶ FAILED
      │                  └▶ OFFERING│
      └─ new session, UNKNOWN_READER, worn memory

# NOTE [shared memory]
Where the feeder takes memory, and the user did not ask for "tcp", OPEN_READER asks for shared
memory. A batch's size is known once the feeder has said what its rows are. Then the memory is made
and offered over a unix socket. Each opening of a reader has memory of its own: an earlier feeder
may still write into the old one.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from async_loader.errors import AsyncLoaderError, Broken, Malformed, Unsupported
from async_loader.feeder.client.channel import Failure, Request, check_opener
from async_loader.feeder.client.errors import error_as, error_of
from async_loader.feeder.client.reader_batches import ReaderBatches, ReaderOptions
from async_loader.feeder.client.slots import SPARE, ReaderSlots
from async_loader.feeder.wire import (
    Batch,
    CloseReader,
    Done,
    End,
    Error,
    ErrorCode,
    Message,
    OpenReader,
    Plane,
    Pull,
    Reader,
    Return,
    SlotBatches,
)
from async_loader.lifecycle import Deadline

if TYPE_CHECKING:
    from async_loader.feeder.client.connection import Connection

REMIND_S = 5.0
"""After this long a PULL without a batch is sent again. Credit is absolute, so that is harmless."""
LATER_S = 0.1
"""Wait before OPEN_READER is sent again after a temporary refusal: the table has no schema yet."""
_FULL = (ErrorCode.LIMIT,)
_ENDS_A_CALL = (ErrorCode.TIMEOUT, ErrorCode.NOT_ENOUGH, *_FULL)
_log = logging.getLogger(__name__)


class ReaderPhase(enum.Enum):
    """Where a reader is."""

    WANTED = "opening"
    OFFERING = "offering memory"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


OVER = {ReaderPhase.CLOSED, ReaderPhase.FAILED}


class ReaderChannel(ReaderBatches):
    """One reader of one table.

    Parameters
    ----------
    port, options : Connection, ReaderOptions
        See `ReaderBatches`.
    number : int
    wanted : OpenReader

    Attributes
    ----------
    dropped : bool
        The source was garbage-collected: close the reader.

    Raises
    ------
    ConfigError
        It cannot be opened.
    """

    def __init__(
        self, port: Connection, number: int, wanted: OpenReader, options: ReaderOptions
    ) -> None:
        super().__init__(port, options)
        check_opener(wanted)
        self.number, self.wanted = number, wanted
        self.phase = ReaderPhase.WANTED
        self.dropped = False
        self._request = Request()
        self._remind_at = 0.0
        self._parting: CloseReader | None = None
        self._barred = False  # from shared memory, in this session
        self._logged = ""

    def ask(self) -> None:
        """With prefetch=0, grant one credit when a consumer starts to wait. Under the lock."""
        if self.phase is ReaderPhase.READY and not self.ahead and self.granted == self.received:
            self.granted += 1

    def close(self, used: bool) -> None:
        """Send CLOSE_READER. Batches go back; handed-out ones too, unless they were ``used``.

        Any thread.
        """
        with self.lock:
            if self.phase is ReaderPhase.CLOSING or self.phase in OVER:
                return
            unknown = self.phase is ReaderPhase.WANTED and not self._request.sequence
            self._parting = self.give_back(used)
            over = unknown or self.ended_after is not None
            self.phase, self._request = ReaderPhase.CLOSING, Request()
            if over:
                self._closed()
            self._ring_bell()

    def wait_closed(self, deadline: Deadline, why: Callable[[], str]) -> None:
        """Wait for the answer to CLOSE_READER: a lost feeder delivers leased batches again."""
        self.news.until(lambda: self.phase in OVER or not self.port.is_open, deadline, why)

    # -- the IO thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Channel`. Credit counts anew; leases of an earlier session are void."""
        with self.lock:
            self._barred = False
            self.session_begins()
            if self.phase is ReaderPhase.CLOSING:
                self.phase = ReaderPhase.CLOSED
            self._open_again()
            self._request, self._parting = Request(), None
            self._ring_bell()
        self.news.ring()

    def _open_again(self, at: float = 0.0) -> None:
        """Open the reader (again), now or at some time."""
        self._forget_memory()
        if self.phase in (ReaderPhase.OFFERING, ReaderPhase.READY):
            self.phase, self._request = ReaderPhase.WANTED, Request(at=at)

    def step(self, now: float) -> float | None:
        """See `Channel`."""
        port, before = self.port, self.phase
        if self.dropped:
            self.close(used=False)
        if self.phase is ReaderPhase.OFFERING and port.is_open:
            self._offer(now)
        due: float | None = None
        with self.lock:
            slots = self.slots
            if self.phase in OVER:
                port.forget(self)
                self._forget_memory()
                if self._parting is not None and port.is_open:
                    port.send(Plane.CONTROL, self._parting, self.number, port.sequence())
            elif port.is_open:
                if slots is not None and slots.worn and not self.leased:
                    self._open_again()  # with new memory
                self._ask(now)
                dues = (self._request.at, self._tell(now))
                due = min((one for one in dues if one is not None and one > now), default=None)
                if self.phase is before:
                    return due
            self._ring_bell()
        self.news.ring()  # a client that closes waits for no feeder that is lost
        return due

    def _tell(self, now: float) -> float | None:
        """Send RETURN and PULL where they are due; return when PULL is sent again."""
        if self.phase is not ReaderPhase.READY:
            return None
        port, slots = self.port, self.slots
        if self.settled and (used := self.take_settled()):
            body = Return(tuple(used))
            port.send(Plane.PULL, body, self.number, port.sequence())
        if self.due or (self.told > self.received and now >= self._remind_at):
            given = () if slots is None else tuple(slots.give())
            self.told, self._remind_at = self.granted, now + REMIND_S
            pull = Pull(self.granted, given, self.wait_s or 0.0)
            port.send(Plane.PULL, pull, self.number, port.sequence())
        return self._remind_at if self.told > self.received else None

    def _ask(self, now: float) -> None:
        """Send OPEN_READER or CLOSE_READER where it is due."""
        request, port = self._request, self.port
        if request.sequence or now < request.at:
            return
        body: OpenReader | CloseReader
        if self.phase is ReaderPhase.CLOSING:
            assert self._parting is not None
            self._forget_memory()
            body = self._parting
        elif self.phase is ReaderPhase.WANTED and self.ended_after is None:
            self._forget_memory()
            body = msgspec.structs.replace(self.wanted, wait_s=self.wait_s)
            if self.options.transport != "tcp" and not self._barred:
                if port.memory_endpoint is None:
                    reason = "the feeder takes no shared memory: it listens at ipc:// only for that"
                    self._bar(reason, logging.DEBUG)
                else:
                    body = msgspec.structs.replace(body, transport="shm")
            self.asks()
        else:
            return
        self._request = Request(port.sequence())
        port.send(Plane.CONTROL, body, self.number, self._request.sequence)

    # -- shared memory -----------------------------------------------------------------------------

    def _forget_memory(self) -> None:
        """Close the memory. Batches in user code keep theirs."""
        slots, self.slots = self.slots, None
        if slots is not None:
            slots.close()

    def _bar(self, reason: str, level: int = logging.WARNING) -> None:
        """Use tcp in this session, for a reason; fail if the user wants shared memory only."""
        table, address = self.wanted.table, self.port.address
        self._barred = True
        if self.options.transport == "shm":
            text = f"batches of table {table!r} cannot come in shared memory from {address}"
            self._fail(lambda: Unsupported(f"{text}: {reason}: use transport='auto' or 'tcp'"))
            return
        if reason != self._logged:
            self._logged = reason
            text = "batches of table %r from %s come over its socket, not in shared memory: %s"
            _log.log(level, text, table, address, reason)
        self._open_again()

    def _offer(self, now: float) -> None:
        """Make memory and offer it. Not under the lock: an answer may take a moment."""
        schema, port, spare = self.schema, self.port, max(SPARE, self.options.planned + 3)
        endpoint = port.memory_endpoint
        assert schema is not None
        assert endpoint is not None
        slots: ReaderSlots | None = None
        error: Exception | None = None
        try:
            slots = ReaderSlots(schema, self.wanted.batch_size, max(1, self.ahead), spare)
            slots.offer(endpoint, port.session.number, self.number)
        except (AsyncLoaderError, OSError) as failed:
            error = failed
        with self.lock:
            if self.phase is ReaderPhase.OFFERING and error is None:
                self.slots, self.phase = slots, ReaderPhase.READY
                return
            if slots is not None:
                slots.close()
            if isinstance(error, Broken):  # for now
                self._open_again(now + LATER_S)
            elif error is not None and self.phase is ReaderPhase.OFFERING:
                self._bar(str(error))

    # -- messages ----------------------------------------------------------------------------------

    def take(self, message: Message, now: float) -> None:
        """See `Channel`."""
        body = message.body
        with self.lock:
            if isinstance(body, Batch | SlotBatches):
                self._receive(message, body, now)
            elif isinstance(body, Reader):
                if self.phase is ReaderPhase.WANTED and self._request.is_answer(message):
                    self._opened(body)
            elif isinstance(body, End):
                ready = self.phase is ReaderPhase.READY
                if self.wait_s is None:
                    self.ended_after = body.count if ready else self.received
                elif ready:  # a call waits for a server
                    self._open_again(now + LATER_S)
            elif isinstance(body, Error):
                self._refused(message, body, now)
            elif isinstance(body, Done) and self.phase is ReaderPhase.CLOSING:
                self._closed()
            self._ring_bell()
        self.news.ring()

    def _closed(self) -> None:
        self.phase, self._parting, self._request = ReaderPhase.CLOSED, None, Request()

    def end(self, failure: Failure) -> None:
        """See `Channel`."""
        with self.lock:
            self.failure = self.failure or failure
            if self.phase is not ReaderPhase.CLOSED:
                self.phase = ReaderPhase.FAILED
            self._forget_memory()
            self._ring_bell()
        self.news.ring()

    def _fail(self, failure: Failure) -> None:
        """End the reader, which the feeder may have open: close it there."""
        if self.phase not in OVER:
            self.failure, self._parting = failure, self.give_back(used=True)
            self.phase = ReaderPhase.FAILED

    def ring(self) -> None:
        """Ring the bell of a thread that waits. Any thread."""
        with self.lock:
            self._ring_bell()

    def _ring_bell(self) -> None:
        if self.bell is not None:
            self.bell.ring()

    def _opened(self, body: Reader) -> None:
        shared = body.transport == "shm"
        self.transport, self._request = body.transport, Request()
        if self.options.transport == "shm" and not shared:
            text = "the feeder was asked for shared memory and answered with tcp"
            self._fail(lambda: Unsupported(f"{text}: use transport='auto'"))
            return
        self.opened(body, self.wanted.batch_size)
        self.phase = ReaderPhase.OFFERING if shared else ReaderPhase.READY

    def _receive(self, message: Message, body: Batch | SlotBatches, now: float) -> None:
        if self.phase is not ReaderPhase.READY:
            return
        self._remind_at = now + REMIND_S
        try:
            self.receive(message, body)
        except Malformed as error:
            where = f"table {self.wanted.table!r}"
            text = f"{where}: a batch is not as the feeder said it would be: {error}"
            self._fail(lambda: Malformed(text))

    def _refused(self, message: Message, error: Error, now: float) -> None:
        where, rows = f"table {self.wanted.table!r}", self.wanted.batch_size
        opening, code = self.phase is ReaderPhase.WANTED, error.code

        def failure() -> AsyncLoaderError:
            found = error_as(error, where, rows) if self.wait_s is not None else None
            return found if isinstance(found, AsyncLoaderError) else error_of(error, where)

        calls = self.wait_s is not None
        if self.phase is ReaderPhase.CLOSING:
            self._closed()
        elif code == ErrorCode.UNKNOWN_READER:
            if not opening:
                self._open_again()
                self.waiting.clear()  # the table was loaded
        elif calls and self.phase is ReaderPhase.READY:
            if message.sequence == self.received < self.granted:
                self.received += 1  # in place of a batch
                self.complaint = failure()
        elif opening and error.retryable and code not in (_ENDS_A_CALL if calls else _FULL):
            if code == ErrorCode.TIMEOUT and self.wanted.timeout_s is not None:
                self.complain(failure())
            self._request = Request(at=now + LATER_S)
        elif error.retryable and not opening:
            self.complain(failure())
        else:
            self._fail(failure)
