"""A reader between the IO thread and the learner's: it opens the reader, and pulls its batches.

::

    WANTED ─OPEN_READER, READER─▶ READY ─CLOSE_READER─▶ CLOSING ─DONE─▶ CLOSED
      ▲                             │          any but CLOSED ──▶ FAILED
      └─ new session, UNKNOWN_READER

# NOTE [shared memory]
Where the feeder takes memory, and the user did not ask for "tcp", OPEN_READER asks for shared
memory. A batch's size is known once the feeder has said what its rows are. Then the memory is made
and offered over a unix socket. Each opening of a reader has memory of its own: an earlier feeder
may still write into the old one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from async_loader.errors import AsyncLoaderError, Unsupported
from async_loader.feeder.client.channel import Failure, Request
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.reader_batches import OVER, ReaderBatches, ReaderPhase, ahead_of
from async_loader.feeder.client.slots import SPARE, ReaderSlots
from async_loader.feeder.wire import (
    MOST_AHEAD,
    Batch,
    BatchForm,
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
    schema_of,
)
from async_loader.lifecycle import Deadline
from async_loader.schema import Schema

REMIND_S = 5.0
"""After this long a PULL without a batch is sent again. Credit is absolute, so that is harmless."""
LATER_S = 0.1
"""Wait before OPEN_READER is sent again after a temporary refusal: the table has no schema yet."""
_FULL = (ErrorCode.LIMIT,)
_ENDS_A_CALL = (ErrorCode.TIMEOUT, ErrorCode.NOT_ENOUGH, *_FULL)
_log = logging.getLogger(__name__)


class ReaderChannel(ReaderBatches):
    """One reader of one table, as the IO thread sees it."""

    def close(self, used: bool) -> None:
        """Send CLOSE_READER. Batches go back; handed-out ones too, unless they were ``used``.

        Any thread.
        """
        with self.lock:
            if self.phase is ReaderPhase.CLOSING or self.phase in OVER:
                return
            unknown = self.phase is ReaderPhase.WANTED and not self._request.sequence
            self._give_back(used)
            self.phase, self._request = ReaderPhase.CLOSING, Request()
            if unknown or self.ended_after is not None:
                self._closed()
            self._ring_bell()

    @property
    def asked(self) -> bool:
        """Whether the server of this session was asked to open the reader."""
        return self.phase is ReaderPhase.READY or bool(self._request.sequence)

    def wait_closed(self, deadline: Deadline, why: Callable[[], str]) -> None:
        """Wait for the answer to CLOSE_READER: a lost feeder delivers leased batches again."""
        port = self.port
        port.news.until(lambda: self.phase in OVER or not port.is_open, deadline, why)

    # -- the IO thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Channel`. Credit counts anew; leases of an earlier session are void."""
        with self.lock:
            self._barred = False
            if self.ended_after is not None:  # batches before the END have come, or never will
                self.ended_after = self.received
            if self.phase is ReaderPhase.CLOSING:
                self.phase = ReaderPhase.CLOSED
            self._open_again()
            self._request, self._parting = Request(), None
            self._ring_bell()

    def _open_again(self, at: float = 0.0) -> None:
        """Open the reader (again), now or at some time."""
        self._forget_memory()
        if self.phase is ReaderPhase.READY:
            self.phase, self._request = ReaderPhase.WANTED, Request(at=at)

    def step(self, now: float) -> float | None:
        """See `Channel`."""
        port, before = self.port, self.phase
        if self.dropped:
            self.close(used=False)
        due: float | None = None
        with self.lock:
            if self.phase in OVER:
                port.forget(self)
                self._forget_memory()
                if self._parting is not None and port.is_open:
                    port.send(Plane.CONTROL, self._parting, self.number, port.sequence())
            elif port.is_open:
                self._open_or_close(now)
                dues = (self._request.at, self._tell(now))
                due = min((one for one in dues if one is not None and one > now), default=None)
                if self.phase is before:
                    return due
            self._ring_bell()
        port.news.ring()  # a client that closes waits for no feeder that is lost
        return due

    def _tell(self, now: float) -> float | None:
        """Send RETURN and PULL where they are due; return when PULL is sent again."""
        if self.phase is not ReaderPhase.READY:
            return None
        port, slots = self.port, self.slots
        used = tuple(one.number for one in self.settled if one.opening == self.opening)
        self.settled.clear()
        if used:
            port.send(Plane.PULL, Return(used), self.number, port.sequence())
        if self.due or (self.told > self.received and now >= self._remind_at):
            given = () if slots is None else tuple(slots.give())
            self.told, self._remind_at = self.granted, now + REMIND_S
            pull = Pull(self.granted, given, self.wait_s or 0.0)
            port.send(Plane.PULL, pull, self.number, port.sequence())
        return self._remind_at if self.told > self.received else None

    def _open_or_close(self, now: float) -> None:
        """Send OPEN_READER or CLOSE_READER where it is due."""
        request, port = self._request, self.port
        if request.sequence or now < request.at:
            return
        body: OpenReader | CloseReader | None = None
        if self.phase is ReaderPhase.CLOSING:
            body = self._parting
        elif self.phase is ReaderPhase.WANTED and self.ended_after is None:
            if self._asked != "tcp" and not self._barred and port.memory_endpoint is None:
                reason = "the feeder takes no shared memory: it listens at ipc:// only for that"
                self._bar(reason, logging.DEBUG)
            shared = self._asked != "tcp" and not self._barred
            transport: Literal["shm", "tcp"] = "shm" if shared else "tcp"
            first = 0 if self.wanted.seed is None else self.first
            body = msgspec.structs.replace(
                self.wanted, wait_s=self.wait_s, transport=transport, first=first
            )
            self.server, self.opening = port.servers, self.opening + 1
            self.leases.clear()  # the server draws those batches again
            self.waiting = deque(one for one in self.waiting if not self.leased or self._holds(one))
        if body is not None and self.phase not in OVER:
            self._forget_memory()
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
        if self._asked == "shm":
            text = f"batches of table {table!r} cannot come in shared memory from {address}"
            self._fail(lambda: Unsupported(f"{text}: {reason}: use transport='auto' or 'tcp'"))
        elif reason != self._logged:
            self._logged = reason
            text = "batches of table %r from %s come over its socket, not in shared memory: %s"
            _log.log(level, text, table, address, reason)

    def _offer(self, schema: Schema) -> None:
        """Make memory and offer it: the answer comes at once, unless the feeder is stopped."""
        endpoint, spare = self.port.memory_endpoint, max(SPARE, self._planned + 3)
        assert endpoint is not None
        try:
            self.slots = ReaderSlots(schema, self.wanted.batch_size, max(1, self.ahead), spare)
            self.slots.offer(endpoint, self.port.session.number, self.number)
        except (AsyncLoaderError, OSError) as error:
            self._bar(str(error))
            self._open_again()

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
        self.port.news.ring()

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
        self.port.news.ring()

    def _fail(self, failure: Failure) -> None:
        """End the reader, which the feeder may have open: close it there."""
        if self.phase not in OVER:
            self.failure, self.phase = failure, ReaderPhase.FAILED
            self._give_back(used=True)

    def _opened(self, body: Reader) -> None:
        shared = body.transport == "shm"
        self.transport, self._request = body.transport, Request()
        schema = self.schema = schema_of(body.schema)
        self.leased, self.eta = body.leased, body.eta
        self._form = BatchForm.of(schema, self.wanted.batch_size)
        nbytes, wished = self._form.nbytes, self._prefetch
        if wished is None:
            wished = ahead_of(schema, nbytes, self._planned)
        self.ahead = min(wished, MOST_AHEAD if shared else self.port.limits.ahead(nbytes))
        self._before += self.received
        self.received = self.told = 0
        self.granted = max(0, self.ahead - len(self.waiting))
        self.phase = ReaderPhase.READY
        if shared:
            self._offer(schema)

    def _receive(self, message: Message, body: Batch | SlotBatches, now: float) -> None:
        """Take batches. Drop those that are here, and those of an earlier opening."""
        first, form, slots = message.sequence, self._form, self.slots
        if self.phase is not ReaderPhase.READY or first < self.received:
            return
        assert form is not None
        self._remind_at = now + REMIND_S
        if isinstance(body, Batch):
            found = form.blocks(body)
            if first + len(found) > self.granted:  # of an earlier opening
                return
            self.received = first
            for one in found:
                lends = one.alone and one.block.ctypes.data % 8 == 0
                self._add(message.flags, form.layout, one.rows, one.block, lends)
        elif slots is not None and first + len(body.places) <= self.granted:
            self.received = first
            for place in body.places:
                root = slots.theirs.pop(place.slot)
                self._add(place.flags, slots.layout, place.rows, root, True, place.slot, slots)

    def _refused(self, message: Message, error: Error, now: float) -> None:
        where, calls = f"table {self.wanted.table!r}", self.wait_s is not None
        opening, code = self.phase is ReaderPhase.WANTED, error.code

        def failure() -> AsyncLoaderError | OSError:
            return error_of(error, where, self.wanted.batch_size)

        if self.phase is ReaderPhase.CLOSING:
            self._closed()
        elif code == ErrorCode.UNKNOWN_READER:
            if not opening:
                self._open_again()
                self._before -= len(self.waiting)
                self.waiting.clear()  # the table was loaded
        elif calls and self.phase is ReaderPhase.READY:
            if message.sequence == self.received < self.granted:
                self.received += 1  # in place of a batch
                self.complaint = failure()
        elif opening and error.retryable and code not in (_ENDS_A_CALL if calls else _FULL):
            if code == ErrorCode.TIMEOUT and self.wanted.timeout_s is not None:
                self._complain(failure())
            self._request = Request(at=now + LATER_S)
        elif error.retryable and not opening:
            self._complain(failure())
        else:
            self._fail(failure)

    def _complain(self, error: AsyncLoaderError | OSError) -> None:
        """Note an error, if a thread waits: the feeder also sends them to a learner that is busy.

        One that begins to wait later is sent another.
        """
        if self.bell is not None:
            self.complaint = error
