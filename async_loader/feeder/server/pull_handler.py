"""The pull plane: PULL and RETURN in, batches out."""

from __future__ import annotations

from collections.abc import Sequence

from async_loader.errors import Malformed
from async_loader.feeder.server.control_handler import PendingReplies
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.reader_state import OutgoingBatch, ReaderState
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    REDELIVERED,
    Batch,
    Body,
    End,
    ErrorCode,
    InSlot,
    Message,
    Ping,
    Plane,
    Pong,
    Pull,
    Return,
    SlotBatches,
    Totals,
    TotalsReply,
    Type,
)

_BATCHES = 64  # of one table in one round
_BYTES = 16 << 20


class PullHandler:
    """Sends batches to readers.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    waits : PendingReplies
        Where a reader waits that is not open yet.
    """

    def __init__(
        self, server_state: ServerState, dispatcher: Dispatcher, waits: PendingReplies
    ) -> None:
        self._server_state, self._dispatcher, self._waits = server_state, dispatcher, waits
        self._bytes = 0
        dispatcher.handlers[Plane.PULL] |= {
            Type.PING: self._ping,
            Type.PULL: self._pull,
            Type.RETURN: self._return,
            Type.TOTALS: self._totals,
        }

    def _ping(self, session: Session, message: Message, body: Ping) -> Message:
        for one in session.readers.values():  # its route may be new
            self._server_state.table(one.table).scheduler.want(one, session.heard)
        return message.reply(Pong())

    def _reader(self, session: Session, message: Message) -> ReaderState:
        reader = session.readers.get(message.number)
        if reader is None:
            raise Malformed(
                f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER
            )
        return reader

    def _pull(self, session: Session, message: Message, body: Pull) -> None:
        reader = self._reader(session, message)
        if reader.shared and reader.batch_ring is None:  # a PULL of an earlier opening
            return
        if body.returned:
            reader.take_back(body.returned)
        reader.grant(body.granted, body.wait_s, session.heard)
        self._server_state.table(reader.table).scheduler.want(reader, session.heard)

    def _return(self, session: Session, message: Message, body: Return) -> None:
        reader = self._reader(session, message)
        for number in body.leases:
            batch = reader.leases.pop(number, None)
            if batch is not None:
                self._server_state.table(reader.table).scheduler.confirm(reader, batch)

    def _totals(self, session: Session, message: Message, body: Totals) -> Message:
        """Return what a reader draws from; nothing while its table has no schema."""
        table = self._waits.resting((session.number, message.number))
        if table is not None:
            return message.reply(TotalsReply(items=0, uses_up=table.table.uses_up))
        reader = self._reader(session, message)
        items, mass, least = reader.drawing.totals()
        uses_up = self._server_state.table(reader.table).table.uses_up
        return message.reply(TotalsReply(items=items, mass=mass, least=least, uses_up=uses_up))

    def flow(self, table: TableEntry) -> bool:
        """Send batches and insert rows, as the limiter allows. Return whether there may be more."""
        queue, scheduler, now = table.insert_queue, table.scheduler, self._server_state.clock()
        self._bytes = sent = 0
        more = went = True
        while more and went:
            came = queue.blocked and queue.advance()
            served = scheduler.serve(self._send, now) if scheduler.has_credit else 0
            sent += served
            went = bool(served or (came and scheduler.has_credit))
            more = sent < _BATCHES and self._bytes < _BYTES
        queue.blocked_time.note(queue.blocked, self._server_state.clock())
        return went

    def _send(self, reader: ReaderState, batches: Sequence[OutgoingBatch]) -> bool:
        session = self._server_state.sessions.get(reader.session)
        if session is None:
            return False
        self._bytes += len(batches) * reader.form.nbytes
        body: Body
        flags, send_buffer = 0, reader.send_buffer
        if send_buffer is not None:
            body = Batch(sum([one.rows for one in batches]), send_buffer.frames())
            flags = REDELIVERED if any(one.again for one in batches) else 0
        else:
            body = SlotBatches(tuple([_place(one) for one in batches]))
        told = self._dispatcher.tell(
            session, Plane.PULL, reader.number, reader.sent, body, reader.form.schema_id, flags
        )
        if told and send_buffer is not None:
            send_buffer.sent(session.routes[Plane.PULL])
        return told

    def complain(self) -> None:
        """Send errors to readers that waited too long, and to readers that can never be served."""
        now = self._server_state.clock()
        for table in self._server_state.tables.values():
            for reader, error in table.scheduler.refusals(now, table.rests):
                session = self._server_state.sessions.get(reader.session)
                if session is not None:
                    number, sequence = reader.number, reader.refuse()
                    self._dispatcher.error(session, Plane.PULL, number, sequence, error)

    def end(self, table: TableEntry, reason: str) -> None:
        """Send END to all readers of a table."""
        for reader in table.scheduler.readers:
            session = self._server_state.sessions.get(reader.session)
            if session is not None:
                end = End(reason=reason, count=reader.sent)
                self._dispatcher.tell(session, Plane.PULL, reader.number, 0, end)


def _place(batch: OutgoingBatch) -> InSlot:
    slot = batch.batch_slot
    assert slot is not None
    return InSlot(slot.slot, slot.generation, batch.rows, REDELIVERED if batch.again else 0)
