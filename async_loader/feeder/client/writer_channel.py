"""A writer between user threads and the IO thread: it opens the writer, and sends its rows.

::

    WANTED ──OPEN_WRITER, WRITER──▶ READY ──CLOSE_WRITER, DONE─▶ CLOSED
      ▲ ▲          │ no schema        │        any but CLOSED ──▶ FAILED
      │ │          ▼                  │
      │ └──── NAMELESS: first step    │
      └──────── new session, UNKNOWN_WRITER, a refused INSERT: all that is kept is sent again

# NOTE [writer's lock]
Rows, outbox and phase change under ``lock`` only. The IO thread holds it for one message at a time.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Hashable
from typing import TYPE_CHECKING

import msgspec

from async_loader.errors import Malformed, SchemaError
from async_loader.feeder.client.channel import Failure, Request, check_opener
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.row_packer import RowPacker
from async_loader.feeder.client.writer_rows import WriterOptions, WriterRows
from async_loader.feeder.wire import (
    ACK_NOW,
    SENT_BEFORE,
    Ack,
    CloseWriter,
    Done,
    Error,
    ErrorCode,
    Insert,
    Message,
    OpenWriter,
    Plane,
    SlotInsert,
    Writer,
    schema_of,
    spec_of,
)
from async_loader.lifecycle import Deadline
from async_loader.schema import Schema

if TYPE_CHECKING:
    from async_loader.feeder.client.connection import Connection

INSERT_BYTES = 4 << 20
"""Bytes of an INSERT, unless one row is larger: several fit into a window, none delays the next."""
LATER_S = 1.0
"""Wait before OPEN_WRITER is sent again after a temporary refusal: the feeder takes no more now."""


class WriterPhase(enum.Enum):
    """Where a writer is."""

    WANTED = "opening"
    NAMELESS = "without a schema"
    """Neither the table nor the writer has a schema: the first step gives it."""
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"


class WriterChannel(WriterRows):
    """One writer of one table: opens it, and sends its messages.

    Parameters
    ----------
    port, number, table, stream, options : Connection, int, str, hashable, WriterOptions
        See `WriterRows`.
    schema : Schema | None

    Attributes
    ----------
    wanted : OpenWriter
        How the writer is opened, with the schema once it is known.
    no_priorities : str | None
        Why the table uses none, as it was when the writer was opened.

    Raises
    ------
    SchemaError, ConfigError
        It cannot be opened.
    """

    def __init__(
        self, port: Connection, number: int, table: str, stream: Hashable, schema: Schema | None,
        options: WriterOptions,
    ) -> None:  # fmt: skip
        super().__init__(port, number, table, stream, options)
        spec = None if schema is None else spec_of(schema)
        producer = secrets.token_bytes(16)
        self.wanted = OpenWriter(table=table, producer=producer, schema=spec)
        check_opener(self.wanted)
        self.no_priorities: str | None = None
        self.phase = WriterPhase.WANTED
        self._request = Request()
        self._server = 0

    # -- any thread --------------------------------------------------------------------------------

    def propose(self, schema: Schema) -> None:
        """Open with the schema of the first step. Under the lock. Raises SchemaError."""
        wanted = msgspec.structs.replace(self.wanted, schema=spec_of(schema))
        check_opener(wanted)
        self.wanted, self.phase, self._request = wanted, WriterPhase.WANTED, Request()

    def close(self, deadline: Deadline) -> None:
        """End the open streams, flush, and close the writer. Does not wait if nothing was put."""
        with self.lock:
            self.check_failure()
            self.seal()
            acknowledged = not self.outbox.entries
            if not self.closing and self.packer is not None and self.streams.names:
                self.end_streams(list(self.streams.names))
            self.closing = True
            self.hurried = self.outbox.put_total
            if self.phase is WriterPhase.NAMELESS:
                self.phase = WriterPhase.CLOSED
        self.port.wake()

        def attempt() -> bool:
            self.check_failure()
            if acknowledged and self.port.drained and not self.port.is_open:
                self._end(WriterPhase.CLOSED)  # no feeder is there to be told
            return self.phase is WriterPhase.CLOSED or not self.hurried

        self.news.until(attempt, deadline, self._why_not)
        self.warn()

    # -- the IO thread -----------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Channel`."""
        with self.lock:
            self._open_again()

    def _open_again(self, at: float = 0.0) -> None:
        self.memory.begin(opened=False)
        if self.phase is WriterPhase.READY:
            self.phase = WriterPhase.WANTED
        self._request = Request(at=at)

    def step(self, now: float) -> float | None:
        """See `Channel`."""
        port, box = self.port, self.outbox
        with self.lock:
            # to a queue at once, unless a message is under way: others' rows would overtake these
            due = self.linger_at
            if due is not None and (now >= due or (box.queue and not box.entries)):
                self.seal()
            self._ask(now)
        while port.is_open and self._send_one():
            continue
        with self.lock:
            due, again_at = self.linger_at, self._request.at
            if again_at <= now or not port.is_open:
                return due
            return again_at if due is None else min(due, again_at)

    def _ask(self, now: float) -> None:
        """Send OPEN_WRITER; or CLOSE_WRITER, when everything is acknowledged."""
        request, box, port = self._request, self.outbox, self.port
        unknown = self.phase is WriterPhase.WANTED and not request.sequence
        if self.closing and unknown and not box.put_total:
            self.phase = WriterPhase.CLOSED  # nothing was written: the feeder need not know
        if self.phase is WriterPhase.CLOSED or self.told:  # else `Client.close` raises its failure
            port.forget(self)
        if not port.is_open or request.sequence or now < request.at:
            return
        body: OpenWriter | CloseWriter
        if self.phase is WriterPhase.WANTED:
            body = self.wanted
        elif self.phase is WriterPhase.READY and self.closing and not box.entries:
            body = CloseWriter(last=box.base)
        else:
            return
        self._request = Request(port.sequence())
        port.send(Plane.CONTROL, body, self.number, self._request.sequence)

    def _send_one(self) -> bool:
        """Send the next message, if the window has room for it; return whether it was sent."""
        with self.lock:
            box = self.outbox
            found = box.next() if self.phase is WriterPhase.READY else None
            if found is None:
                return False
            assert self.packer is not None
            sequence, entry = found
            hurries = self.hurried > box.done_total and box.cursor + 1 == len(box.entries)
            flags = (ACK_NOW if hurries else 0) | (SENT_BEFORE if entry.elsewhere else 0)
            body: Insert | SlotInsert = entry.payload
            if entry.buffer is not None and entry.buffer.slot is not None and self.memory.taken:
                body = SlotInsert(entry.rows, entry.buffer.slot[0], entry.buffer.capacity)
            schema_id = self.packer.layout.schema_id
            try:
                self.port.send(
                    Plane.INSERT, body, self.number, sequence, schema=schema_id, flags=flags
                )
            except Malformed as error:
                text = str(error)
                self._fail(lambda: Malformed(text))
                return False
            box.sent()
            return True

    def take(self, message: Message, now: float) -> None:
        """See `Channel`."""
        body = message.body
        with self.lock:
            if isinstance(body, Writer):
                if self.phase is WriterPhase.WANTED and self._request.is_answer(message):
                    self._opened(body)
            elif isinstance(body, Ack) and self.phase is WriterPhase.READY:
                box = self.outbox
                box.window_bytes, box.window_rows = body.window_bytes, body.window_rows
                box.acked(body.applied)
            elif isinstance(body, Done) and self._request.is_answer(message):
                self._end(WriterPhase.CLOSED)
            elif isinstance(body, Error):
                self._refused(message, body, now)
        self.news.ring()

    def end(self, failure: Failure) -> None:
        """See `Channel`."""
        with self.lock:
            self._fail(failure)
        self.news.ring()

    def _opened(self, body: Writer) -> None:
        self._request = Request()
        self.no_priorities = body.no_priorities
        if self.packer is None:
            schema, most = schema_of(body.schema), self.options.message_bytes
            self.wanted = msgspec.structs.replace(self.wanted, schema=body.schema)
            try:
                self.packer = RowPacker(schema, self.options.batch_rows, min(INSERT_BYTES, most))
            except Malformed:  # a row is larger than that
                self.packer = RowPacker(schema, 1, most)
        elif body.schema != spec_of(self.packer.schema):
            text = f"table {self.table!r} has another schema since the feeder was started anew"
            self._fail(lambda: SchemaError(f"{text}: open a new writer"))
            return
        packer, box = self.packer, self.outbox
        lost = box.reopened(
            body.applied,
            body.resumed,
            lambda: packer.cut(range(self.streams.most)),
            self._server != self.port.servers,
        )
        if lost:
            self.unsaid += lost
            self.port.lost[self.table, self._server] += lost
        self._server = self.port.servers
        box.window_bytes, box.window_rows, box.queue = (
            body.window_bytes, body.window_rows, body.queue,
        )  # fmt: skip
        self.memory.begin(opened=True)
        self.phase = WriterPhase.READY

    def _refused(self, message: Message, error: Error, now: float) -> None:
        opening, later = self.phase is WriterPhase.WANTED, error.code != ErrorCode.UNKNOWN_WRITER
        if opening and not self._request.is_answer(message):
            return  # an INSERT from before, which is sent again
        if error.code == ErrorCode.SCHEMA and opening and self.wanted.schema is None:
            self.phase = WriterPhase.CLOSED if self.closing else WriterPhase.NAMELESS
            self._request = Request()
        elif error.retryable and not (opening and error.code == ErrorCode.LIMIT):  # many writers
            self._open_again(now + LATER_S if later else 0.0)
        else:
            self._fail(lambda: error_of(error, f"table {self.table!r}"))

    def _fail(self, failure: Failure) -> None:
        if self.phase is not WriterPhase.CLOSED:
            self.failure = self.failure or failure
            self._end(WriterPhase.FAILED)

    def _end(self, phase: WriterPhase) -> None:
        """Free what no message needs: nothing is added any more."""
        self.phase, self._request = phase, Request()
        self.linger_at = None
        self.memory.close()
