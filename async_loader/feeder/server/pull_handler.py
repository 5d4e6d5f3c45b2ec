"""The pull plane: PULLs, priorities and leases in, batches out. Knows no socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.batch_scheduler import ReaderState
from async_loader.feeder.server.call_handler import CallHandler
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.outgoing_batches import OutgoingBatch
from async_loader.feeder.server.send_buffers import SendBuffer
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.sockets import Plane
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    REDELIVERED,
    Applied,
    Batch,
    End,
    ErrorCode,
    InSlot,
    Message,
    OfTable,
    Priorities,
    Pull,
    Return,
    SlotBatches,
    Type,
)  # fmt: skip

_BATCHES = 64  # of one table in one round
_BYTES = 16 << 20
_TOLD_BYTES = 1 << 20
"""In slots, of which readers are told without waiting for the others of the round."""


class PullHandler:
    """Sends batches to readers.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Post
    calls : Calls
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher, calls: CallHandler) -> None:
        self._server_state, self._dispatcher, self._calls = server_state, dispatcher, calls
        self._bytes = self._slot_bytes = 0
        self._untold: dict[ReaderState, list[OutgoingBatch]] = {}  # batches that are ready, and still to be sent
        self._full: ReaderState | None = None  # whose batches make a message

    def handle(self, session: Session, message: Message) -> None:
        """Raises Malformed for what cannot be done."""
        body = message.body
        if message.type is Type.PING:  # perhaps from where it can be reached again
            for one in session.readers.values():
                one.scheduler.want(one, session.heard)
            return
        if isinstance(body, OfTable):
            answer = self._calls.answer(session, message)
            if answer is not None:
                self._dispatcher.send(session, Plane.PULL, answer)
            return
        reader = session.readers.get(message.number)
        if isinstance(body, Pull | Priorities | Return) and reader is None:
            raise Malformed(f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER)
        if reader is not None and isinstance(body, Pull):
            if reader.shared and reader.batch_ring is None:  # of an earlier opening: this one, which took its place, came first
                return
            if len(body.returned):
                reader.take_back(body.returned.tolist())
            reader.grant(body.granted, body.received if message.sequence > reader.opening else 0)
            reader.scheduler.want(reader, session.heard)
        elif reader is not None and isinstance(body, Priorities):
            self._dispatcher.send(session, Plane.PULL, message.reply(self._applied(reader, body)))
        elif reader is not None and isinstance(body, Return):
            reader.scheduler.give_back(reader, body.leases.tolist())
        else:
            raise Malformed(f"{message.type.name} is nothing for a server's pull plane")

    def _applied(self, reader: ReaderState, body: Priorities) -> Applied:
        try:
            done = reader.scheduler.table.prioritize(body.ids, body.values)
        except AsyncLoaderError as error:
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from error
        return Applied(done.applied, done.stale)

    def flow(self, table: TableEntry) -> bool:
        """Let batches out and inserts in, as the table allows; each makes room for the other. Whether there may be more."""
        try:
            return self._flow(table)
        finally:
            self._tell_all()

    def _flow(self, table: TableEntry) -> bool:
        insert_queue, scheduler, now = table.insert_queue, table.scheduler, self._server_state.clock()
        self._bytes = sent = 0
        while True:
            came = insert_queue.blocked and insert_queue.advance()
            if not scheduler.has_credit and not self._calls.wanted(table):
                return False
            went = self._serve(table, now)
            sent += went
            if self._full is not None:
                self._tell(self._full)
            elif self._slot_bytes >= _TOLD_BYTES:
                self._tell_all()
            if sent >= _BATCHES or self._bytes >= _BYTES:
                return True
            if not went and not came:
                return False

    def _serve(self, table: TableEntry, now: float) -> int:
        """Let a batch out, to a reader or to a call. See NOTE [whose turn] in batch_scheduler.py."""
        scheduler, calls = table.scheduler, self._calls
        first = calls.oldest(table)
        if first is None:
            return scheduler.serve(self._deliver, now, 1)
        since = scheduler.oldest
        if not table.table.uses_up or since is None:
            return calls.serve(table) + scheduler.serve(self._deliver, now, 1)
        if first <= since:
            return calls.serve(table)
        return scheduler.serve(self._deliver, now, 1) + calls.serve(table, may_draw=False)

    def _deliver(self, reader: ReaderState, outgoing_batch: OutgoingBatch) -> bool:
        if self._server_state.sessions.get(reader.session) is None:
            return False
        self._bytes += reader.form.nbytes
        ready = self._untold.setdefault(reader, [])
        ready.append(outgoing_batch)
        if reader.send_buffer is None:
            self._slot_bytes += reader.form.nbytes
        elif len(ready) == reader.send_buffer.most:
            self._full = reader
        return True

    def _tell_all(self) -> None:
        for reader in list(self._untold):
            self._tell(reader)

    def _tell(self, reader: ReaderState) -> None:
        """Send what is ready for a reader; what cannot be sent is its outlet's again."""
        self._full = None
        outgoing_batches = self._untold.pop(reader)
        session = self._server_state.sessions.get(reader.session)
        sent = 0
        if reader.send_buffer is None:
            self._slot_bytes -= len(outgoing_batches) * reader.form.nbytes
            sent = 0 if session is None else self._tell_slots(session, reader, outgoing_batches)
        elif session is not None:
            sent = self._send_from(reader.send_buffer, session, reader, outgoing_batches)
        for one in outgoing_batches[:sent]:
            one.batch_slot = None  # it may be leased for long, and is in columns of its own then
        if sent < len(outgoing_batches):
            reader.scheduler.unsent(reader, outgoing_batches[sent:])

    def _tell_slots(self, session: Session, reader: ReaderState, outgoing_batches: Sequence[OutgoingBatch]) -> int:
        places = [
            InSlot(one.batch_slot.slot, one.batch_slot.generation, one.rows, REDELIVERED if one.again else 0)
            for one in outgoing_batches
            if one.batch_slot is not None
        ]
        first, schema = reader.sent - len(outgoing_batches), reader.form.schema_id
        told = self._dispatcher.tell(session, Plane.PULL, reader.number, first, SlotBatches(places), schema)
        return len(outgoing_batches) if told else 0

    def _send_from(
        self, send_buffer: SendBuffer, session: Session, reader: ReaderState, outgoing_batches: Sequence[OutgoingBatch]
    ) -> int:
        sent, first = 0, reader.sent - len(outgoing_batches)
        for some in _alike(outgoing_batches, reader.batch_size):
            batch_slots = [one.batch_slot for one in some if one.batch_slot is not None]
            body = Batch(sum(one.rows for one in some), send_buffer.frames(batch_slots))
            flags = REDELIVERED if some[0].again else 0
            message = Message(
                body, session.number, first + sent, reader.number, reader.form.schema_id, flags, session.version
            )  # fmt: skip
            if not self._dispatcher.send(session, Plane.PULL, message):
                break
            send_buffer.sent(first + sent, batch_slots)
            sent += len(some)
        send_buffer.clear()
        return sent

    def complain(self) -> None:
        """Tell those who have waited for too long, and those who wait for what can never be."""
        now = self._server_state.clock()
        for table in self._server_state.tables.values():
            if table.rests:
                continue
            for reader, reason in table.scheduler.failed():
                self._error(reader, ErrorCode.UNSUPPORTED, reason)
            for reader, reason in table.scheduler.overdue(now):
                self._error(reader, ErrorCode.TIMEOUT, reason)

    def _error(self, reader: ReaderState, code: ErrorCode, reason: str) -> None:
        session = self._server_state.sessions.get(reader.session)
        if session is not None:
            self._dispatcher.error(session, Plane.PULL, reader.number, reader.sent, code, reason)

    def end(self, table: TableEntry, reason: str) -> None:
        """Nothing more comes out of this table."""
        for reader in table.scheduler.readers:
            session = self._server_state.sessions.get(reader.session)
            if session is not None:
                self._dispatcher.tell(session, Plane.PULL, reader.number, 0, End(reason=reason, count=reader.sent))


def _alike(outgoing_batches: Sequence[OutgoingBatch], batch_size: int) -> Iterator[list[OutgoingBatch]]:
    """What can be in one message: whole batches of which all, or none, have rows that were sent before; a short one alone."""
    some: list[OutgoingBatch] = []
    for one in outgoing_batches:
        if some and (one.again is not some[0].again or one.rows < batch_size or some[0].rows < batch_size):
            yield some
            some = []
        some.append(one)
    yield some
