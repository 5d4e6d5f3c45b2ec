"""A reader between the IO thread and the learner's: batches that came, how many more may come. Decodes no batch.

NOTE [shared memory]. Where the feeder says that it takes memory, and nobody has said "tcp", OPEN_READER asks for it. READER
says that it will be: then memory is made, since only now a batch's size is known, and offered; batches are asked for when it
was taken. Each opening has memory of its own: what an earlier feeder may still write into is nobody's any more.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from async_loader.errors import AsyncLoaderError, Broken, Malformed, OutOfMemory, Unsupported
from async_loader.feeder.client.batch_copies import SocketBatch, Unpacking
from async_loader.feeder.client.connection import Connection, Failure
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.slots import FilledSlot, ReaderSlots
from async_loader.feeder.client.sockets import Plane
from async_loader.feeder.shared import Offering
from async_loader.feeder.wire import (
    MOST_AHEAD,
    REDELIVERED,
    Batch,
    BatchForm,
    CloseReader,
    Done,
    End,
    Error,
    ErrorCode,
    Limits,
    Message,
    OpenReader,
    Pull,
    Reader,
    Return,
    SlotBatches,
    schema_of,
)  # fmt: skip
from async_loader.lifecycle import EventFd
from async_loader.schema import Schema

ASK_AGAIN_S = 5.0
LATER_S, LATER_MOST_S = 0.05, 1.0
"""Until OPEN_READER is sent again, when the server says that it may work later: a table without a schema."""
REMIND_S = 5.0
"""After which a PULL that nothing came for is sent again: its connection may have been another. Grants are absolute."""
AHEAD_BYTES, AHEAD_LEAST, AHEAD_MOST, AHEAD_WEIGHTED = 4 << 20, 4, 32, 8
"""Batches that may be ahead when nobody said how many: enough that small ones travel many at a time. Fewer where each has
weights: they are those of the moment at which it was drawn, and so are the priorities that it was drawn by."""
SPARE = 4
"""Batches in shared memory that a learner can hold without being copied, unless a loader says that it holds more."""
Transport = Literal["auto", "shm", "tcp"]

_log = logging.getLogger(__name__)


class ReaderPhase(enum.Enum):
    WANTED = "wanted"
    OPENING = "opening"
    OFFERING = "offering"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Lease:
    """On a batch of a queue: its ``number`` within an ``opening`` of a line, and from which ``server`` it came."""

    line: ReaderChannel
    number: int
    opening: int
    server: int


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """One batch, as it came or where it lies; ``server`` says whose ids it has, see `Connection.servers`."""

    body: SocketBatch | FilledSlot
    lease: Lease | None
    server: int


class ReaderChannel:
    """One reader of one table.

    Parameters
    ----------
    number : int
    wanted : OpenReader
    prefetch : int | None
        Batches that may be on their way or wait here; 0: none is drawn before somebody waits for it. ``None``: as many as are
        worth it, which is known when the schema is.
    transport : "auto" | "shm" | "tcp"
    planned : int
        Batches that a loader plans ahead of the learner.

    Attributes
    ----------
    transport : "shm" | "tcp" | None
        What this opening uses.
    dropped : tuple of lists of Lease | None
        What to close it with, when its source is gone: see `close`.
    """

    def __init__(
        self, number: int, wanted: OpenReader, prefetch: int | None, transport: Transport = "tcp", planned: int = 0
    ) -> None:
        self.number, self.wanted, self.prefetch = number, wanted, prefetch or 0
        self._prefetch, self._wants, self._planned = prefetch, transport, planned
        self.transport: Literal["shm", "tcp"] | None = None
        self._slots: ReaderSlots | None = None
        self._offering: Offering | None = None
        self._barred: str | None = None  # why it is tcp in this session
        self._said: str | None = None
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.bell: EventFd | None = None
        self.phase = ReaderPhase.WANTED
        self.schema: Schema | None = None
        self.leased = False
        self.batches = self.redelivered = 0
        self.inbox: deque[ReceivedBatch] = deque()
        self.complaints: deque[AsyncLoaderError] = deque()
        self.failure: Failure | None = None
        self._ended_after: int | None = None
        self._unpacking: Unpacking | None = None
        self._limits = Limits()
        self._opening = self._server = 0
        self._asked = 0
        self._ask_at: float | None = None
        self._later_s = LATER_S
        self._came = self._granted = self._told = 0
        self._remind_at: float | None = None
        self.dropped: tuple[list[Lease], list[Lease]] | None = None
        self._settled: deque[Lease] = deque()
        self._parting = CloseReader()

    # -- under the lock, any thread ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.phase is ReaderPhase.READY

    @property
    def due(self) -> bool:
        """Whether more batches are asked for: by halves of what may be ahead, as each PULL wakes two threads and a server.
        Fewer only where the feeder has nothing left that it owes, for want of credit or of slots.
        """
        untold = self._granted - self._told
        slots = self._slots
        if slots is None:
            return untold > 0 and (2 * untold >= self.prefetch or (self._told <= self._came and not self.inbox))
        free, theirs = slots.free, slots.theirs
        if (2 * untold >= self.prefetch and untold) or (2 * free >= self.prefetch >= 2 * theirs and free):
            return True
        return (untold > 0 or free > 0) and not self.inbox and (self._told <= self._came or not theirs)

    @property
    def ended(self) -> bool:
        """Nothing more comes, and everything that came was taken."""
        return self._ended_after is not None and not self.inbox and self._came >= self._ended_after

    def on_change(self, bell: EventFd | None) -> None:
        """Ring this from now on, or nothing."""
        self.bell = bell

    def next(self) -> ReceivedBatch | None:
        """The next batch. Another one is asked for in its place: also of one from before, as `_opened` counted it."""
        if not self.inbox:
            return None
        if self.prefetch:  # those of an earlier opening too: this one was granted so many less
            self._granted += 1
        return self.inbox.popleft()

    def holds(self, lease: Lease) -> bool:
        """Whether its batch is delivered here: not, if the feeder has it again. What an earlier feeder gave is in no other."""
        return lease.opening == self._opening or lease.server != self._server or self._ended_after is not None

    def settle(self, lease: Lease) -> None:
        """Its batch was used. No lock: it is called within ``next(loader)``, where a signal handler may close everything."""
        self._settled.append(lease)

    @property
    def owes(self) -> bool:
        """Whether the feeder is still to be told of batches that were used."""
        return bool(self._settled)

    def ask(self) -> None:
        """Somebody waits for a batch. Of these, one is asked for where none are ahead."""
        if not self.prefetch and self.phase is ReaderPhase.READY and self._granted == self._came:
            self._granted += 1

    def close(self, seen: Iterable[Lease] = (), unseen: Iterable[Lease] = ()) -> None:
        """CLOSE_READER. These leases, which were taken, and those in the inbox go back; all others were used."""
        if self.phase in (ReaderPhase.CLOSING, ReaderPhase.CLOSED, ReaderPhase.FAILED):
            return  # what goes back was said
        waiting = (came.lease for came in self.inbox if came.lease is not None)
        back = [[one.number for one in some if one.opening == self._opening] for some in (seen, (*unseen, *waiting))]
        self._parting = CloseReader(self._came, len(back[0]), np.array([*back[0], *back[1]], np.uint64))
        self._opening += 1  # of none of them a batch is delivered here any more
        self._settled.clear()
        self.inbox.clear()
        self._ask_at = None
        over = self.phase is ReaderPhase.WANTED or self._ended_after is not None
        self.phase = ReaderPhase.CLOSED if over else ReaderPhase.CLOSING

    # -- the IO thread ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Line`. Grants count anew; leases of an earlier session are others' by now."""
        with self.lock:
            self._forget_memory()
            self._barred = None
            if self.phase is ReaderPhase.CLOSING:
                self.phase = ReaderPhase.CLOSED
            elif self.phase in _OPEN:
                self.phase = ReaderPhase.WANTED
            if self._ended_after is not None:  # what the end was after has come, or comes no more
                self._ended_after = self._came
            self._ask_at = self._remind_at = None
        self._ring()

    def step(self, now: float, port: Connection) -> float | None:
        """See `Line`."""
        if self.dropped is not None:
            with self.lock:
                self.close(*self.dropped)
                self.dropped = None
        if self.phase is ReaderPhase.CLOSED:
            self._forget_memory()
            port.forget(self)
        if not port.is_open or self.phase is ReaderPhase.CLOSED:
            return None
        with self.lock:
            before = self.phase
            if before is ReaderPhase.CLOSING:
                self._forget_memory()
            elif self.phase is ReaderPhase.OFFERING:
                self._offer(port)
            elif self._slots is not None and self._slots.worn and not self.leased and self.phase is ReaderPhase.READY:
                self.phase = ReaderPhase.WANTED  # with new memory
            self._ask(now, port)
            if self.phase is ReaderPhase.READY:
                self._say(now, port)
            moved = self.phase is not before
            dues = (self._ask_at, self._remind_at if self.phase is ReaderPhase.READY else None)
            due = min((due for due in dues if due is not None), default=None)
        if moved:
            self._ring()
        return due

    def _say(self, now: float, port: Connection) -> None:
        if self._settled:
            leases = [self._settled.popleft() for _ in range(len(self._settled))]
            numbers = np.array([one.number for one in leases if one.opening == self._opening], np.uint64)
            if len(numbers):
                port.send(Plane.PULL, Return(numbers), self.number, port.sequence())
        if self.due or (self._remind_at is not None and now >= self._remind_at):
            slots = [] if self._slots is None else self._slots.give()
            self._told, self._remind_at = self._granted, now + REMIND_S
            port.send(Plane.PULL, Pull(self._granted, self._came, np.array(slots, np.uint32)), self.number, port.sequence())

    def _ask(self, now: float, port: Connection) -> None:
        if self._ask_at is not None and now < self._ask_at:
            return
        over = self._ended_after is not None
        if self.phase is ReaderPhase.CLOSING:
            body: OpenReader | CloseReader = self._parting
        elif self.phase in (ReaderPhase.WANTED, ReaderPhase.OPENING) and not over:
            self._forget_memory()
            body = self._opener(port)
            if self.failure is not None:
                return
            self.phase, self._server = ReaderPhase.OPENING, port.servers
            self._opening += 1
            self.inbox = deque(came for came in self.inbox if came.lease is None or self.holds(came.lease))
        else:
            self._ask_at = None
            return
        self._asked, self._ask_at, self._limits = port.sequence(), now + ASK_AGAIN_S, port.limits
        port.send(Plane.CONTROL, body, self.number, self._asked)

    # -- shared memory, the IO thread, under the lock; see NOTE -------------------------------------------------------------

    def _opener(self, port: Connection) -> OpenReader:
        welcome = port.session.welcome
        if self._wants == "tcp" or self._barred is not None:
            return self.wanted
        if welcome is None or welcome.memory_endpoint is None:
            self._bar(port, "the feeder takes no shared memory: it listens at ipc:// only for that", logging.DEBUG)
            return self.wanted
        return msgspec.structs.replace(self.wanted, transport="shm")

    def _bar(self, port: Connection, reason: str, level: int = logging.WARNING) -> None:
        """No shared memory in this session, for a reason. Ends the reader, where nothing else was wanted."""
        self._barred = reason
        self._forget_memory()
        table = self.wanted.table
        if self._wants == "shm":
            text = f"batches of table {table!r} cannot come in shared memory from {port.address}: {reason}"
            self.failure = lambda: Unsupported(f"{text}: use transport='auto' or 'tcp'")
            self.phase = ReaderPhase.FAILED
            return
        if reason != self._said:
            self._said = reason
            text = "batches of table %r from %s come over its socket, not in shared memory: %s"
            _log.log(level, text, table, port.address, reason)
        if self.phase is not ReaderPhase.OPENING:
            self.phase, self._ask_at = ReaderPhase.WANTED, None

    def _offer(self, port: Connection) -> None:
        """Make memory and offer it; or look whether it was taken."""
        welcome = port.session.welcome
        assert welcome is not None
        assert welcome.memory_endpoint is not None
        assert self.schema is not None
        try:
            if self._offering is None:
                spare = max(SPARE, self._planned + 3)
                slots = self._slots = ReaderSlots(self.schema, self.wanted.batch_size, max(1, self.prefetch), spare)
                offer = slots.offer(port.session.number, self.number)
                self._offering = Offering(welcome.memory_endpoint, offer, slots.fileno())
                port.watch(self._offering)
            elif self._offering.taken():
                self._offering.close()
                self._offering, self.phase = None, ReaderPhase.READY
        except (Unsupported, OutOfMemory, Malformed) as error:
            self._bar(port, str(error))
        except OSError as error:
            self._bar(port, f"memory could not be made: {error}")
        except Broken:  # for now
            self._forget_memory()
            self.phase, self._ask_at = ReaderPhase.WANTED, port.clock() + LATER_S

    def _forget_memory(self) -> None:
        slots, self._slots = self._slots, None
        offering, self._offering = self._offering, None
        if offering is not None:
            offering.close()
        if slots is not None:
            slots.close()

    # -- what comes -------------------------------------------------------------

    def take(self, message: Message, now: float) -> None:
        """See `Line`."""
        body = message.body
        with self.lock:
            if isinstance(body, Batch):
                self._arrived(message, body, now)
            elif isinstance(body, SlotBatches):
                self._filled(message, body, now)
            elif isinstance(body, Reader):
                if self.phase is ReaderPhase.OPENING and message.sequence == self._asked:
                    self._opened(body)
            elif isinstance(body, End):
                self._ended_after = body.count if self.phase is ReaderPhase.READY else self._came
            elif isinstance(body, Error):
                self._refused(message, body, now)
            elif isinstance(body, Done) and self.phase is ReaderPhase.CLOSING:
                self.phase, self._ask_at, self._remind_at = ReaderPhase.CLOSED, None, None
                self._forget_memory()
        self._ring()

    def end(self, failure: Failure) -> None:
        """See `Line`."""
        with self.lock:
            self.failure = self.failure or failure
            self.phase = ReaderPhase.FAILED if self.phase is not ReaderPhase.CLOSED else self.phase
            self._forget_memory()
        self._ring()

    def _ring(self) -> None:
        with self.lock:
            if self.bell is not None:
                self.bell.ring()
        self.news.ring()

    def _opened(self, body: Reader) -> None:
        self.schema, self.leased = schema_of(body.schema), body.leased
        self._unpacking = Unpacking(BatchForm.of(self.schema, self.wanted.batch_size))
        batch_bytes = self._unpacking.form.nbytes
        wished = ahead_of(self.schema, batch_bytes, self._planned) if self._prefetch is None else self._prefetch
        self.prefetch = min(wished, MOST_AHEAD if body.transport == "shm" else self._limits.ahead(batch_bytes))
        self._came = self._told = 0
        self._granted = max(0, self.prefetch - len(self.inbox))
        self._ask_at, self._later_s = None, LATER_S
        self.transport = body.transport
        if body.transport == "shm":
            self.phase = ReaderPhase.OFFERING
            return
        self.phase = ReaderPhase.READY
        if self._wants == "shm":
            text = "the feeder was asked for shared memory and answered with tcp: use transport='auto'"
            self.failure = lambda: Unsupported(text)
            self.phase = ReaderPhase.FAILED

    def _arrived(self, message: Message, body: Batch, now: float) -> None:
        # A batch that is there already was sent twice; one of an earlier opening was drawn for nobody.
        if self.phase is not ReaderPhase.READY or message.sequence < self._came:
            return
        unpacking = self._unpacking
        assert unpacking is not None
        try:
            found = unpacking.form.blocks(body)
            if message.sequence + len(found) > self._granted:  # nobody asked for it: it is of an earlier opening
                return
            for i, lying in enumerate(found):
                self._add(message.sequence + i, SocketBatch(unpacking, lying), message.flags)
        except Malformed as error:
            text = f"a batch of table {self.wanted.table!r} is not as the feeder said it would be: {error}"
            self.failure, self.phase = lambda: Malformed(text), ReaderPhase.FAILED
        self._remind_at = now + REMIND_S if self._granted > self._came else None

    def _filled(self, message: Message, body: SlotBatches, now: float) -> None:
        """The same, of batches in shared memory."""
        if self.phase is not ReaderPhase.READY or not self._came <= message.sequence <= self._granted - len(body.places):
            return
        try:
            if self._slots is None:
                raise Malformed("a batch came in shared memory, and none was offered")
            for i, place in enumerate(body.places):
                self._add(message.sequence + i, self._slots.take(place), place.flags)
        except Malformed as error:
            text = f"table {self.wanted.table!r}: {error}"
            self.failure, self.phase = lambda: Malformed(text), ReaderPhase.FAILED
        self._remind_at = now + REMIND_S if self._granted > self._came else None

    def _add(self, number: int, body: SocketBatch | FilledSlot, flags: int) -> None:
        self._came = number + 1
        self.batches += 1
        self.redelivered += bool(flags & REDELIVERED)
        lease = Lease(self, number, self._opening, self._server) if self.leased else None
        self.inbox.append(ReceivedBatch(body, lease, self._server))

    def _refused(self, message: Message, error: Error, now: float) -> None:
        if error.code == ErrorCode.UNKNOWN_READER:
            if self.phase in (ReaderPhase.OFFERING, ReaderPhase.READY):
                self.phase, self._ask_at = ReaderPhase.WANTED, None
                self.inbox.clear()  # the table may hold something else by now: it was loaded
        elif self.phase is ReaderPhase.CLOSING:
            self.phase, self._ask_at = ReaderPhase.CLOSED, None
        elif self.phase is ReaderPhase.OPENING and error.retryable and error.code != ErrorCode.LIMIT:  # that is ours to change
            if error.code == ErrorCode.TIMEOUT and self.wanted.timeout_s is not None:
                self.complaints.append(error_of(error, f"table {self.wanted.table!r}"))
            self._ask_at, self._later_s = now + self._later_s, min(2 * self._later_s, LATER_MOST_S)
        elif error.retryable and self.phase is not ReaderPhase.OPENING:
            self.complaints.append(error_of(error, f"table {self.wanted.table!r}"))
        else:
            self.failure = lambda: error_of(error, f"table {self.wanted.table!r}")
            self.phase = ReaderPhase.FAILED


_OPEN = (ReaderPhase.OPENING, ReaderPhase.OFFERING, ReaderPhase.READY)


def ahead_of(schema: Schema, batch_bytes: int, planned: int) -> int:
    """Batches that may be ahead, when nobody said how many."""
    most = AHEAD_WEIGHTED if any(field.name == "weight" for field in schema.fields) else AHEAD_MOST
    return max(AHEAD_LEAST, min(most, AHEAD_BYTES // max(1, batch_bytes)), planned)
