"""The pull plane: PULL and RETURN in, batches out; and learners' offers of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.server.call_handler import CallHandler
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.insert_queue import WriterState
from async_loader.feeder.server.insert_slots import InsertSlots
from async_loader.feeder.server.reader_state import ReaderState
from async_loader.feeder.server.send_buffers import OutgoingBatch, SendBuffer
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.shared import (
    Listener,
    Offer,
    Owner,
    SharedBatchRing,
    WeightsRequest,
)
from async_loader.feeder.wire import (
    REDELIVERED,
    Batch,
    End,
    ErrorCode,
    InSlot,
    Message,
    OfTable,
    Plane,
    Pull,
    Return,
    SlotBatches,
    Totals,
    TotalsReply,
    Type,
)
from async_loader.shm.segment import Segment

_BATCHES = 64  # of one table in one round
_BYTES = 16 << 20


class PullHandler:
    """Sends batches to readers.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    calls : CallHandler
    """

    def __init__(
        self, server_state: ServerState, dispatcher: Dispatcher, calls: CallHandler
    ) -> None:
        self._server_state, self._dispatcher, self._calls = server_state, dispatcher, calls
        self._bytes = 0

    def handle(self, session: Session, message: Message) -> None:
        """Handle a message of a session. Raises Malformed if it cannot be done."""
        body = message.body
        if message.type is Type.PING:  # its route may be new
            for one in session.readers.values():
                one.scheduler.want(one, session.heard)
            return
        if isinstance(body, OfTable):
            answer = self._calls.answer(session, message, body)
            if answer is not None:
                self._dispatcher.answer(session, Plane.PULL, answer)
            return
        reader = session.readers.get(message.number)
        if isinstance(body, Totals):
            self._dispatcher.answer(session, Plane.PULL, message.reply(_totals(reader)))
            return
        if isinstance(body, Pull | Return) and reader is None:
            raise Malformed(
                f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER
            )
        if reader is not None and isinstance(body, Pull):
            if reader.shared and reader.batch_ring is None:  # a PULL of an earlier opening
                return
            if body.returned:
                reader.take_back(body.returned)
            received = body.received if message.sequence > reader.opening else 0
            reader.grant(body.granted, received, body.wait_s, session.heard)
            reader.scheduler.want(reader, session.heard)
        elif reader is not None and isinstance(body, Return):
            reader.scheduler.give_back(reader, body.leases)
        else:
            raise Malformed(f"{message.type.name} is not a message for a server's pull plane")

    def flow(self, table: TableEntry) -> bool:
        """Send batches and insert rows, as the limiter allows. Return whether there may be more."""
        try:
            return self._flow(table)
        finally:
            table.insert_queue.blocked_time.note(
                table.insert_queue.blocked, self._server_state.clock()
            )

    def _flow(self, table: TableEntry) -> bool:
        insert_queue, scheduler, now = (
            table.insert_queue,
            table.scheduler,
            self._server_state.clock(),
        )
        self._bytes = sent = 0
        while True:
            came = insert_queue.blocked and insert_queue.advance()
            if not scheduler.has_credit:
                return False
            went = scheduler.serve(self._send, now)
            sent += went
            if sent >= _BATCHES or self._bytes >= _BYTES:
                return True
            if not went and not came:
                return False

    def _send(self, reader: ReaderState, outgoing_batches: Sequence[OutgoingBatch]) -> int:
        session = self._server_state.sessions.get(reader.session)
        if session is None:
            return 0
        self._bytes += len(outgoing_batches) * reader.form.nbytes
        if reader.send_buffer is None:
            sent = self._send_slots(session, reader, outgoing_batches)
        else:
            sent = self._send_from(reader.send_buffer, session, reader, outgoing_batches)
        for one in outgoing_batches[:sent]:
            one.batch_slot = None  # a leased batch has columns of its own
        return sent

    def _send_slots(
        self, session: Session, reader: ReaderState, outgoing_batches: Sequence[OutgoingBatch]
    ) -> int:
        places = [
            InSlot(
                one.batch_slot.slot,
                one.batch_slot.generation,
                one.rows,
                REDELIVERED if one.again else 0,
            )
            for one in outgoing_batches
            if one.batch_slot is not None
        ]
        body, schema = SlotBatches(tuple(places)), reader.form.schema_id
        told = self._dispatcher.tell(session, Plane.PULL, reader.number, reader.sent, body, schema)
        return len(outgoing_batches) if told else 0

    def _send_from(
        self,
        send_buffer: SendBuffer,
        session: Session,
        reader: ReaderState,
        outgoing_batches: Sequence[OutgoingBatch],
    ) -> int:
        sent, first = 0, reader.sent
        for some in _alike(outgoing_batches, reader.batch_size):
            batch_slots = [one.batch_slot for one in some if one.batch_slot is not None]
            body = Batch(sum(one.rows for one in some), send_buffer.frames(batch_slots))
            flags = REDELIVERED if some[0].again else 0
            message = Message(
                body, session.number, first + sent, reader.number, reader.form.schema_id, flags
            )
            if not self._dispatcher.send(session, Plane.PULL, message):
                break
            send_buffer.sent(first + sent, batch_slots)
            sent += len(some)
        send_buffer.clear()
        return sent

    def complain(self) -> None:
        """Send errors to readers that waited too long, and to readers that can never be served."""
        now = self._server_state.clock()
        for table in self._server_state.tables.values():
            for reader, error in table.scheduler.refusals(now, table.rests):
                session = self._server_state.sessions.get(reader.session)
                if session is not None:
                    self._dispatcher.error(
                        session, Plane.PULL, reader.number, reader.refuse(),
                        ErrorCode(error.code), str(error), error.expected,
                    )  # fmt: skip

    def end(self, table: TableEntry, reason: str) -> None:
        """Send END to all readers of a table."""
        for reader in table.scheduler.readers:
            session = self._server_state.sessions.get(reader.session)
            if session is not None:
                self._dispatcher.tell(
                    session, Plane.PULL, reader.number, 0, End(reason=reason, count=reader.sent)
                )


class SharedMemoryAcceptor:
    """Takes clients' offers of memory. Poll `listener`, and call its `handle`.

    Parameters
    ----------
    path : str
        Of the unix socket.
    sessions : Sessions
        Whose readers and writers may be offered memory.
    weights : WeightStore
        Whose memory sessions may map.

    Raises
    ------
    ConfigError
        If nothing can listen there.
    """

    def __init__(self, path: str, sessions: Sessions, weights: WeightStore) -> None:
        self._sessions, self._weights = sessions, weights
        weights.shared = True
        try:
            self.listener = Listener(path, self._take, self._give)
        except OSError as error:
            raise ConfigError(
                f"{path} (shared memory) cannot be bound: {error.strerror}: name another address"
            ) from None
        self.path = path

    def _give(self, wanted: WeightsRequest) -> int:
        if self._sessions.get(wanted.session) is None:
            raise Malformed(f"there is no session {wanted.session}")
        return self._weights.memory_of(wanted.name, wanted.version, wanted.run)

    def _take(self, offer: Offer, fd: int) -> None:
        try:
            owner = self._writer(offer) if offer.owner is Owner.WRITER else self._reader(offer)
        except Malformed:
            os.close(fd)
            raise
        segment = Segment.attach(fd, offer.nbytes)
        try:
            if isinstance(owner, ReaderState):
                schema, rows = owner.schema, owner.batch_size
                owner.batch_ring = SharedBatchRing(segment, offer, schema, rows)
            else:
                owner.slots = InsertSlots(segment, offer)
        except BaseException:
            segment.close()
            raise

    def _writer(self, offer: Offer) -> WriterState:
        session = self._sessions.get(offer.session)
        writer = None if session is None else session.writers.get(offer.number)
        if writer is None:
            raise Malformed(f"there is no writer {offer.number} of this session: open it first")
        if writer.slots is not None:
            raise Malformed(f"writer {offer.number} has its memory: open it again to offer another")
        return writer

    def _reader(self, offer: Offer) -> ReaderState:
        session = self._sessions.get(offer.session)
        reader = None if session is None else session.readers.get(offer.number)
        if reader is None or not reader.shared:
            raise Malformed(
                f"there is no reader {offer.number} of this session that takes memory: open it "
                "first"
            )
        if reader.batch_ring is not None:
            raise Malformed(f"reader {offer.number} has its memory: open it again to offer another")
        return reader


def _totals(reader: ReaderState | None) -> TotalsReply:
    """Return what a reader draws from; nothing before it is open."""
    if reader is None:
        return TotalsReply(items=0)
    items, mass, least = reader.drawing.totals()
    uses_up = reader.scheduler.table.uses_up
    return TotalsReply(items=items, mass=mass, least=least, uses_up=uses_up)


def _alike(
    outgoing_batches: Sequence[OutgoingBatch], batch_size: int
) -> Iterator[list[OutgoingBatch]]:
    """Yield batches that can share a message: full ones, all redelivered or none.

    A short batch is alone in its message.
    """
    some: list[OutgoingBatch] = []
    for one in outgoing_batches:
        if some and (
            one.again is not some[0].again or one.rows < batch_size or some[0].rows < batch_size
        ):
            yield some
            some = []
        some.append(one)
    yield some
