"""A reader between the IO thread and the learner's: received batches, and credit for more.

::

    WANTED ─OPEN_READER─▶ OPENING ─READER, tcp─▶ READY ─CLOSE_READER─▶ CLOSING ─DONE─▶ CLOSED
      ▲                     │ READER, shm         ▲ │            any but CLOSED ──▶ FAILED
      │                     └─▶ OFFERING ─taken───┘ │
      └─ new session, UNKNOWN_READER, worn memory ──┘

Where the feeder takes memory, and the user did not ask for "tcp", OPEN_READER asks for shared
memory; see NOTE [shared memory] in offered_memory.py.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from async_loader.errors import (
    AsyncLoaderError,
    Broken,
    Malformed,
    OutOfMemory,
    Timeout,
    Unsupported,
)
from async_loader.feeder.client.channel import ASK_AGAIN_S, Failure, Request, check_opener
from async_loader.feeder.client.deliveries import Deliveries
from async_loader.feeder.client.errors import error_as, error_of
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.offered_memory import FAILURES, OfferedMemory, endpoint_of
from async_loader.feeder.client.reader_state import (
    LATER_MOST_S,
    LATER_S,
    MOVES,
    OPEN,
    OVER,
    ReaderOptions,
    ReaderPhase,
)
from async_loader.feeder.client.slots import SPARE
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
    Totals,
    TotalsReply,
)
from async_loader.lifecycle import StateTable

REMIND_S = 5.0
"""After this long a PULL without a batch is sent again. Credit is absolute, so that is harmless."""
_ENDS_A_CALL = (ErrorCode.TIMEOUT, ErrorCode.NOT_ENOUGH, ErrorCode.LIMIT)
_log = logging.getLogger(__name__)


class ReaderChannel:
    """One reader of one table.

    Parameters
    ----------
    number : int
    wanted : OpenReader
    options : ReaderOptions

    Attributes
    ----------
    deliveries : Deliveries
        Batches and credit.
    memory : OfferedMemory
    wait_s : float | None
        Of a reader for calls: how long the present one may wait.

    Raises
    ------
    ConfigError
        It cannot be opened.
    """

    def __init__(self, number: int, wanted: OpenReader, options: ReaderOptions) -> None:
        check_opener(wanted)
        self.number, self.wanted, self.options = number, wanted, options
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.failure: Failure | None = None
        self.memory = OfferedMemory()
        self.deliveries = Deliveries(options, self.memory, self.lock)
        self._phases = StateTable(ReaderPhase.WANTED, MOVES)
        self._request = Request()
        self._known = self._parted = False
        self.wait_s: float | None = None

    # -- under the lock, any thread ----------------------------------------------------------------

    @property
    def phase(self) -> ReaderPhase:
        """Where the reader is."""
        return self._phases.state

    def ask(self) -> None:
        """With prefetch=0, grant one credit when a consumer starts to wait."""
        credit, ready = self.deliveries.credit, self._phases.state is ReaderPhase.READY
        if ready and not credit.ahead and credit.granted == credit.received:
            credit.granted += 1

    def close(self, used: bool) -> None:
        """Send CLOSE_READER. Batches go back; handed-out ones too, unless they were ``used``."""
        if self._phases.state in (ReaderPhase.CLOSING, ReaderPhase.CLOSED) or self._parted:
            return  # what goes back was said
        ended, self._parted = self.deliveries.close(used), True
        if self._phases.state is ReaderPhase.FAILED:
            return  # see `_part`
        self._request.done()
        over = ended or self._phases.state is ReaderPhase.WANTED
        self._phases.to(ReaderPhase.CLOSED if over else ReaderPhase.CLOSING)

    # -- the IO thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Channel`. Credit counts anew; leases of an earlier session are void."""
        with self.lock:
            self.memory.forget()
            self.deliveries.begin()
            if self._phases.state is ReaderPhase.CLOSING:
                self._phases.to(ReaderPhase.CLOSED)
            elif self._phases.state in OPEN:
                self._phases.to(ReaderPhase.WANTED)
            self._request.done()
            self._known = False
        self._ring()

    def step(self, now: float, port: IoThread) -> float | None:
        """See `Channel`."""
        returns = self.deliveries.returns
        if returns.dropped:
            with self.lock:
                self.close(used=False)
                returns.dropped = False
        if self._phases.state in OVER:
            self._part(port)
        if not port.is_open or self._phases.state in OVER:
            self.news.ring()  # a client that closes waits for no feeder that is lost
            return None
        with self.lock:
            before, slots, leased = self.phase, self.memory.slots, self.deliveries.opening.leased
            if before is ReaderPhase.CLOSING:
                self.memory.forget()
            elif before is ReaderPhase.OFFERING:
                self._offer(port)
            elif before is ReaderPhase.READY and slots is not None and slots.worn and not leased:
                self._phases.to(ReaderPhase.WANTED)  # with new memory
            self._ask(now, port)
            ready = self._phases.state is ReaderPhase.READY
            if ready:
                self._tell(now, port)
            moved = self._phases.state is not before
            totals_at = self._ask_totals(now, port)
            remind_at = self.deliveries.credit.remind_at if ready else None
            dues = (self._request.again_at, remind_at, totals_at, self.memory.answer_at(now))
            due = min((due for due in dues if due is not None), default=None)
        if moved:
            self._ring()
        return due

    def _part(self, port: IoThread) -> None:
        """Forget a reader that is over. If it failed, the feeder may have it open: close it there.

        That says which leased batches were used, so the learner has to close it first, or drop it.
        """
        with self.lock:
            self.memory.forget()
            failed = self._phases.state is ReaderPhase.FAILED and self._known and port.is_open
            if failed and self.deliveries.opening.leased and not self._parted:
                return
            port.forget(self)
            if failed:
                parting = self.deliveries.returns.parting
                port.send(Plane.CONTROL, parting, self.number, port.sequence())

    def _tell(self, now: float, port: IoThread) -> None:
        """Send RETURN and PULL where they are due."""
        deliveries, credit, slots = self.deliveries, self.deliveries.credit, self.memory.slots
        if deliveries.returns.settled and (used := deliveries.settled()):
            body = Return(tuple(used))
            port.send(Plane.PULL, body, self.number, port.sequence())
        if deliveries.due or (credit.remind_at is not None and now >= credit.remind_at):
            given = () if slots is None else tuple(slots.give())
            credit.told, credit.remind_at = credit.granted, now + REMIND_S
            pull = Pull(credit.granted, given, self.wait_s or 0.0)
            port.send(Plane.PULL, pull, self.number, port.sequence())

    def _ask_totals(self, now: float, port: IoThread) -> float | None:
        """Send TOTALS if it is due; return when the next one is."""
        totals, waits = self.deliveries.totals, self.deliveries.bell is not None
        due = totals.due(now, waits) if self._phases.state in OPEN else None
        if due is not None and due <= now:
            totals.asked_at, totals.wanted = now, False
            port.send(Plane.PULL, Totals(), self.number, port.sequence())
            due = totals.due(now, waits)
        return due

    def _ask(self, now: float, port: IoThread) -> None:
        """Send OPEN_READER or CLOSE_READER where it is due."""
        request, deliveries = self._request, self.deliveries
        if request.again_at is not None and now < request.again_at:
            return
        body: OpenReader | CloseReader
        wanted = self._phases.state in (ReaderPhase.WANTED, ReaderPhase.OPENING)
        if self._phases.state is ReaderPhase.CLOSING:
            body = deliveries.returns.parting
        elif wanted and deliveries.credit.ended_after is None:
            self.memory.forget()
            body = self._opener(port)
            self._phases.to(ReaderPhase.OPENING)
            self._known = True
            self.deliveries.ask_for(port.servers)
        else:
            request.done()
            return
        deliveries.opening.limits = port.limits
        request.sent(port.sequence(), now + ASK_AGAIN_S)
        port.send(Plane.CONTROL, body, self.number, request.sequence)

    # -- shared memory: the IO thread, under the lock ----------------------------------------------

    def _opener(self, port: IoThread) -> OpenReader:
        wanted = msgspec.structs.replace(self.wanted, wait_s=self.wait_s)
        if self.options.transport == "tcp" or self.deliveries.opening.barred is not None:
            return wanted
        if endpoint_of(port) is None:
            text = "the feeder takes no shared memory: it listens at ipc:// only for that"
            self._bar(port, text, logging.DEBUG)
            return wanted
        return msgspec.structs.replace(wanted, transport="shm")

    def _bar(self, port: IoThread, reason: str, level: int = logging.WARNING) -> None:
        """Use tcp in this session, for a reason; fail if the user wants shared memory only."""
        opening, table = self.deliveries.opening, self.wanted.table
        opening.barred = reason
        self.memory.forget()
        if self.options.transport == "shm":
            text = f"batches of table {table!r} cannot come in shared memory from {port.address}"
            self._fail(lambda: Unsupported(f"{text}: {reason}: use transport='auto' or 'tcp'"))
            return
        if reason != opening.logged:
            opening.logged = reason
            _log.log(level, FAILURES, table, port.address, reason)
        if self._phases.state is not ReaderPhase.OPENING and self._phases.to(ReaderPhase.WANTED):
            self._request.done()

    def _offer(self, port: IoThread) -> None:
        """Make memory and offer it; or look whether it was taken."""
        schema, rows = self.deliveries.opening.schema, self.wanted.batch_size
        assert schema is not None
        try:
            if not self.memory.under_offer:
                spare = max(SPARE, self.options.planned + 3)
                ahead = max(1, self.deliveries.credit.ahead)
                self.memory.offer(schema, rows, ahead, spare, self.number, port)
            elif self.memory.taken():
                self._phases.to(ReaderPhase.READY)
        except (Unsupported, OutOfMemory, Malformed, Timeout) as error:
            self._bar(port, str(error))
        except OSError as error:
            self._bar(port, f"memory could not be made: {error}")
        except Broken:  # for now
            self.memory.forget()
            self._phases.to(ReaderPhase.WANTED)
            self._request.again_at = port.clock() + LATER_S

    # -- messages ----------------------------------------------------------------------------------

    def take(self, message: Message, now: float) -> None:
        """See `Channel`."""
        body = message.body
        with self.lock:
            if isinstance(body, Batch | SlotBatches):
                self._receive(message, body, now)
            elif isinstance(body, TotalsReply):
                totals = self.deliveries.totals
                totals.newest, totals.heard_at, totals.asked_at = body, now, None
            elif isinstance(body, Reader):
                if self._phases.state is ReaderPhase.OPENING and self._request.is_answer(message):
                    self._opened(body)
            elif isinstance(body, End):
                ready, credit = self._phases.state is ReaderPhase.READY, self.deliveries.credit
                if self.wait_s is None:
                    credit.ended_after = body.count if ready else credit.received
                elif ready and self._phases.to(ReaderPhase.WANTED):  # a call waits for a server
                    self._request.again_at = now + LATER_S
            elif isinstance(body, Error):
                self._refused(message, body, now)
            elif isinstance(body, Done) and self._phases.state is ReaderPhase.CLOSING:
                self._phases.to(ReaderPhase.CLOSED)
                self._request.done()
                self.deliveries.credit.remind_at = None
                self.memory.forget()
        self._ring()

    def end(self, failure: Failure) -> None:
        """See `Channel`."""
        with self.lock:
            self.failure = self.failure or failure
            self._phases.to(ReaderPhase.FAILED)
            self.memory.forget()
        self._ring()

    def _fail(self, failure: Failure) -> None:
        if self._phases.to(ReaderPhase.FAILED):
            self.failure = failure

    def _ring(self) -> None:
        with self.lock:
            if self.deliveries.bell is not None:
                self.deliveries.bell.ring()
        self.news.ring()

    def _opened(self, body: Reader) -> None:
        shared = body.transport == "shm"
        self.deliveries.opening.transport = body.transport
        if self.options.transport == "shm" and not shared:
            text = "the feeder was asked for shared memory and answered with tcp"
            self._fail(lambda: Unsupported(f"{text}: use transport='auto'"))
            return
        self.deliveries.opened(body, self.wanted.batch_size)
        self._request.done()
        self._phases.to(ReaderPhase.OFFERING if shared else ReaderPhase.READY)

    def _receive(self, message: Message, body: Batch | SlotBatches, now: float) -> None:
        if self._phases.state is not ReaderPhase.READY:
            return
        credit, where = self.deliveries.credit, f"table {self.wanted.table!r}"
        before = credit.received
        try:
            if isinstance(body, Batch):
                self.deliveries.receive(message, body)
            else:
                self.deliveries.receive_slots(message, body)
        except Malformed as error:
            text = f"{where}: a batch is not as the feeder said it would be: {error}"
            self._fail(lambda: Malformed(text))
        if credit.received != before:
            credit.remind_at = now + REMIND_S if credit.granted > credit.received else None

    def _refused(self, message: Message, error: Error, now: float) -> None:
        where, request = f"table {self.wanted.table!r}", self._request
        opening = self._phases.state is ReaderPhase.OPENING
        if self.wait_s is not None and self._refused_call(message, error, where):
            return
        if error.code == ErrorCode.UNKNOWN_READER:
            in_use = self._phases.state in (ReaderPhase.OFFERING, ReaderPhase.READY)
            if in_use and self._phases.to(ReaderPhase.WANTED):
                request.done()
                self.deliveries.inbox.waiting.clear()  # the table was loaded
        elif self._phases.state is ReaderPhase.CLOSING:
            self._phases.to(ReaderPhase.CLOSED)
            request.done()
        elif opening and error.retryable and error.code != ErrorCode.LIMIT:  # LIMIT stays
            if error.code == ErrorCode.TIMEOUT and self.wanted.timeout_s is not None:
                self.deliveries.complain(error_of(error, where))
            request.again_at = now + self.deliveries.opening.later_s
            self.deliveries.opening.later_s = min(2 * self.deliveries.opening.later_s, LATER_MOST_S)
        elif error.retryable and not opening:
            self.deliveries.complain(error_of(error, where))
        else:
            self._fail(lambda: error_of(error, where))

    def _refused_call(self, message: Message, error: Error, where: str) -> bool:
        """Take an ERROR that ends a call; return whether it does."""
        credit, rows = self.deliveries.credit, self.wanted.batch_size

        def failure() -> AsyncLoaderError:
            found = error_as(error, where, rows)
            return found if isinstance(found, AsyncLoaderError) else error_of(error, where)

        if self._phases.state is ReaderPhase.READY and error.code != ErrorCode.UNKNOWN_READER:
            if message.sequence == credit.received < credit.granted:
                credit.received += 1  # in place of a batch
                credit.remind_at = None
                self.deliveries.inbox.complaint = failure()
            return True
        again = error.retryable and error.code not in _ENDS_A_CALL
        if self._phases.state is not ReaderPhase.OPENING or again:
            return False
        self._fail(failure)
        return True
