"""A writer between user threads and the IO thread: the buffer being filled and the outbox.

::

    WANTED ──OPEN_WRITER──▶ OPENING ──WRITER──▶ READY ──CLOSE_WRITER, ACK──▶ CLOSED
      ▲ ▲                    │  │ no schema       │        any but CLOSED ──▶ FAILED
      │ │                    │  ▼                 │
      │ └─── first step ─── NAMELESS              │
      └──────── new session, UNKNOWN_WRITER ──────┘

# NOTE [writer's lock]
Rows, outbox and phase change under ``lock`` only. The IO thread holds it for one message at a time.
"""

from __future__ import annotations

import enum
import secrets
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from async_loader.errors import AsyncLoaderError, Closed, Malformed, SchemaError
from async_loader.feeder.client.channel import (
    ASK_AGAIN_S,
    Failure,
    Request,
    check_opener,
)
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.outbox import Entry
from async_loader.feeder.client.row_packer import InsertPayload, RowPacker
from async_loader.feeder.client.row_queue import RowQueue, WriterOptions
from async_loader.feeder.wire import (
    ACK_NOW,
    SENT_BEFORE,
    Ack,
    CloseWriter,
    Error,
    ErrorCode,
    Gap,
    Insert,
    Message,
    OpenWriter,
    Plane,
    SlotInsert,
    Writer,
    schema_of,
    spec_of,
)
from async_loader.lifecycle import StateTable
from async_loader.schema import Schema

INSERT_BYTES = 4 << 20
"""Bytes of an INSERT, unless one row is larger: several fit into a window, none delays the next."""
PROBE_S, PROBE_MOST_S = 1.0, 10.0
"""After this long without an ACK the newest INSERT is sent again: it, or the GAP, may be lost."""


class WriterPhase(enum.Enum):
    """Where a writer is. `MOVES` holds the legal moves."""

    WANTED = "wanted"
    """An OPEN_WRITER has to be sent."""
    OPENING = "opening"
    NAMELESS = "nameless"
    """Neither the table nor the writer has a schema: the first step gives it."""
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"


_ENDS = {WriterPhase.CLOSED, WriterPhase.FAILED}
MOVES: dict[WriterPhase, set[WriterPhase]] = {
    WriterPhase.WANTED: {WriterPhase.OPENING, *_ENDS},
    WriterPhase.OPENING: {*WriterPhase},
    WriterPhase.NAMELESS: {WriterPhase.WANTED, *_ENDS},
    WriterPhase.READY: {WriterPhase.WANTED, *_ENDS},
    WriterPhase.CLOSED: set(),
    WriterPhase.FAILED: {WriterPhase.FAILED},
}


@dataclass(slots=True)
class Probe:
    """When the newest INSERT is sent again, in seconds of the IO thread's clock.

    Attributes
    ----------
    at : float | None
        ``None``: not at all.
    wait_s : float
        The current wait for an ACK; doubles with each probe.
    """

    at: float | None = None
    wait_s: float = PROBE_S


@dataclass(slots=True)
class RowLosses:
    """Acknowledged rows that were lost with a server.

    Attributes
    ----------
    by_server : Counter
        By the number of the server that had them; see `IoThread`.
    unsaid : int
        That the user was not warned of.
    server, asked : int
        The one that the writer is open at, and the one that it was opened at last.
    """

    by_server: Counter[int] = field(default_factory=Counter)
    unsaid: int = 0
    server: int = 0
    asked: int = 0

    def opened(self, lost: int) -> None:
        """Note that a writer is open, and how many rows of before are missing there."""
        if lost:
            self.unsaid += lost
            self.by_server[self.server] += lost
        self.server = self.asked


class WriterChannel:
    """One writer of one table.

    Parameters
    ----------
    number : int
    table : str
    schema : Schema | None
    options : WriterOptions

    Attributes
    ----------
    wanted : OpenWriter
        How the writer is opened, with the schema once it is known.
    queue : RowQueue
    takes_priorities : bool
        Whether the table is known to use priorities.
    closing : bool
        Whether `close` was called.
    losses : RowLosses

    Raises
    ------
    SchemaError, ConfigError
        It cannot be opened.
    """

    def __init__(
        self, number: int, table: str, schema: Schema | None, options: WriterOptions
    ) -> None:
        self.number, self.options = number, options
        spec = None if schema is None else spec_of(schema)
        producer = secrets.token_bytes(16)
        self.wanted = OpenWriter(table=table, producer=producer, epoch=1, schema=spec)
        check_opener(self.wanted)
        self.lock = threading.RLock()
        self.news = Notifier(self.lock)
        self.queue = RowQueue(options)
        self.takes_priorities = False
        self.closing = False
        self.failure: Failure | None = None
        self._phases = StateTable(WriterPhase.WANTED, MOVES)
        self._request = Request()
        self._probe = Probe()
        self.losses = RowLosses()

    # -- under the lock, any thread ----------------------------------------------------------------

    @property
    def table(self) -> str:
        """The table's name."""
        return self.wanted.table

    @property
    def phase(self) -> WriterPhase:
        """Where the writer is."""
        return self._phases.state

    def check(self) -> None:
        """Raise what ended this writer, if anything has."""
        if self.failure is not None:
            raise self.failure()
        if self.closing:
            raise Closed(f"this writer of {self.table!r} is closed")

    def propose(self, schema: Schema) -> None:
        """Open with the schema of the first step, if the table has none. Raises SchemaError."""
        if self._phases.state is WriterPhase.NAMELESS:
            wanted = msgspec.structs.replace(self.wanted, schema=spec_of(schema))
            check_opener(wanted)
            self.wanted = wanted
            self._phases.to(WriterPhase.WANTED)
            self._request.done()

    def close(self, open_streams: Sequence[int]) -> bool:
        """Add nothing more: end these streams and hurry.

        Return whether there is anything to send.
        """
        if self.failure is not None:
            raise self.failure()
        self.queue.seal()
        if open_streams and self.queue.packer is not None and not self.closing:
            self.queue.end_streams(open_streams)
        self.closing = True
        put = self.queue.hurry()
        if self._phases.state is WriterPhase.NAMELESS:
            self._phases.to(WriterPhase.CLOSED)
        return bool(put)

    def warn(self) -> None:
        """Warn the user's thread of rows that the server lost. Not under the lock."""
        if self.losses.unsaid:
            lost, self.losses.unsaid = self.losses.unsaid, 0
            text = f"the feeder lost {lost} rows of table {self.table!r} that it had acknowledged"
            warnings.warn(f"{text}: it was started anew", stacklevel=4)

    # -- the IO thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Channel`."""
        with self.lock:
            self.queue.memory.begin()
            if self._phases.state in (WriterPhase.OPENING, WriterPhase.READY):
                self._phases.to(WriterPhase.WANTED)
            self._request = Request()

    def step(self, now: float, port: IoThread) -> float | None:
        """See `Channel`."""
        probe = self._probe
        with self.lock:
            if self.queue.is_due(now):
                self.queue.seal()
            self._ask(now, port)
            if port.is_open and self._phases.state is WriterPhase.READY:
                assert self.queue.packer is not None
                slot_bytes = self.queue.packer.slot_bytes
                self.queue.memory.step(slot_bytes, self.number, self.table, port)
        while port.is_open and self._send_one(now, port):
            continue
        with self.lock:
            self._send_probe(now, port)
            dues = [self.queue.fill_at]
            if port.is_open:
                dues += [self._request.again_at, probe.at, self.queue.memory.answer_at(now)]
            return min((due for due in dues if due is not None), default=None)

    def _ask(self, now: float, port: IoThread) -> None:
        """Send OPEN_WRITER; or CLOSE_WRITER, when everything is acknowledged."""
        request = self._request
        if (
            self.closing
            and self._phases.state is WriterPhase.WANTED
            and not self.queue.outbox.put_total
        ):
            self._phases.to(WriterPhase.CLOSED)  # nothing was written: the feeder need not know
        if self._phases.state in _ENDS:
            port.forget(self)
        if not port.is_open or (request.again_at is not None and now < request.again_at):
            return
        body: OpenWriter | CloseWriter
        if self._phases.state in (WriterPhase.WANTED, WriterPhase.OPENING):
            body = self.wanted
            self.losses.asked = port.servers
            self._phases.to(WriterPhase.OPENING)
        elif (
            self._phases.state is WriterPhase.READY
            and self.closing
            and self.queue.buffer is None
            and not len(self.queue.outbox)
        ):
            body = CloseWriter(last=self.queue.outbox.base)
        else:
            request.done()
            return
        request.sent(port.sequence(), now + ASK_AGAIN_S)
        port.send(Plane.CONTROL, body, self.number, request.sequence)

    def _send_one(self, now: float, port: IoThread) -> bool:
        """Send the next message, if the window has room for it; return whether it was sent."""
        with self.lock:
            ready, queue = self._phases.state is WriterPhase.READY, self.queue
            found = queue.outbox.next() if ready else None
            if found is None:
                return False
            assert queue.packer is not None
            sequence, entry = found
            hurried = queue.hurried > queue.outbox.done_total and queue.outbox.unsent == 1
            flags = (ACK_NOW if hurried else 0) | (SENT_BEFORE if entry.elsewhere else 0)
            schema_id = queue.packer.layout.schema_id
            try:
                body = self._body_of(entry)
                if not port.send_insert(body, self.number, sequence, schema_id, flags):
                    return False
            except Malformed as error:
                text = str(error)
                self._fail(lambda: Malformed(text))
                return False
            queue.outbox.sent()
            if self._probe.at is None:
                self._probe.at = now + self._probe.wait_s
            return True

    def _body_of(self, entry: Entry) -> Insert | SlotInsert:
        """Return the message with its rows, or with the slot that they lie in.

        See NOTE [slots of a writer].
        """
        payload: InsertPayload = entry.payload
        in_slot = payload.in_slot(self.queue.memory)
        payload.over_socket = payload.over_socket or in_slot is None
        return payload.insert if in_slot is None else in_slot

    def _send_probe(self, now: float, port: IoThread) -> None:
        probe = self._probe
        if self._phases.state is not WriterPhase.READY or not self.queue.outbox.under_way:
            probe.at = None
        elif port.is_open and probe.at is not None and now >= probe.at:
            found = self.queue.outbox.probe()
            assert found is not None
            assert self.queue.packer is not None
            sequence, entry = found
            flags = ACK_NOW | (SENT_BEFORE if entry.elsewhere else 0)
            schema_id = self.queue.packer.layout.schema_id
            port.send_insert(self._body_of(entry), self.number, sequence, schema_id, flags)
            probe.wait_s = min(2 * probe.wait_s, PROBE_MOST_S)
            probe.at = now + probe.wait_s

    def take(self, message: Message, now: float) -> None:
        """See `Channel`."""
        body = message.body
        with self.lock:
            if isinstance(body, Writer):
                if self._phases.state is WriterPhase.OPENING and self._request.is_answer(message):
                    self._opened(body)
            elif isinstance(body, Ack):
                self._acked(message, body, now)
            elif isinstance(body, Error):
                self._refused(message, body)
        self.news.ring()

    def end(self, failure: Failure) -> None:
        """See `Channel`."""
        with self.lock:
            if self._phases.state is not WriterPhase.CLOSED:
                self._fail(failure)
        self.news.ring()

    def _opened(self, body: Writer) -> None:
        self._request.done()
        self.queue.memory.begin()
        self.takes_priorities = body.no_priorities is None
        if self.queue.packer is None:
            schema, most = schema_of(body.schema), self.options.message_bytes
            self.wanted = msgspec.structs.replace(self.wanted, schema=body.schema)
            try:
                self.queue.packer = RowPacker(
                    schema, self.options.batch_rows, min(INSERT_BYTES, most)
                )
            except Malformed:  # a row is larger than that
                self.queue.packer = RowPacker(schema, 1, most)
        elif body.schema != spec_of(self.queue.packer.schema):
            text = f"table {self.table!r} has another schema since the feeder was started anew"
            self._fail(lambda: SchemaError(f"{text}: open a new writer"))
            return
        self.losses.opened(self.queue.reopened(body.applied, body.resumed))
        self.queue.outbox.window(body.window_bytes, body.window_rows)
        self.queue.outbox.queue = body.queue
        self._probe.at, self._probe.wait_s = None, PROBE_S
        self._phases.to(WriterPhase.READY)

    def _acked(self, message: Message, body: Ack, now: float) -> None:
        self.queue.outbox.window(body.window_bytes, body.window_rows)
        if isinstance(body, Gap):
            self.queue.outbox.gap(body.applied)
            return
        if self._phases.state is not WriterPhase.READY:
            return
        if self.queue.outbox.acked(body.applied):
            self._probe.wait_s = PROBE_S
            self._probe.at = now + PROBE_S
        if (
            self.closing
            and self._request.again_at is not None
            and self._request.is_answer(message)
            and not len(self.queue.outbox)
        ):
            self._phases.to(WriterPhase.CLOSED)
            self._request.done()
            self.queue.over()

    def _refused(self, message: Message, error: Error) -> None:
        opening = self._phases.state is WriterPhase.OPENING
        if error.code == ErrorCode.UNKNOWN_WRITER:
            if self._phases.state is WriterPhase.READY and self._phases.to(WriterPhase.WANTED):
                self._request.done()
        elif opening and not self._request.is_answer(message):
            return  # the answer to a request that was sent again since
        elif error.code == ErrorCode.SCHEMA and opening and self.wanted.schema is None:
            self._phases.to(WriterPhase.CLOSED if self.closing else WriterPhase.NAMELESS)
            self._request.done()
        elif error.retryable and not (opening and error.code == ErrorCode.LIMIT):  # many writers
            return  # it is sent again: by a probe, or as a request without an answer
        else:
            self._fail(lambda: error_of(error, f"table {self.table!r}"))

    def _fail(self, failure: Callable[[], AsyncLoaderError]) -> None:
        if self._phases.to(WriterPhase.FAILED):
            self.failure = self.failure or failure
            self._request.done()
            self._probe = Probe()
            self.queue.over()
