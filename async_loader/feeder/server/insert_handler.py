"""The insert plane: INSERTs in, ACKs out.

# NOTE [late ACKs]
An ACK is cumulative, so that one answers many messages, and each costs the writer's process more
than the rows of a small message do. So the ACK of a writer that does not wait for it is sent after
a moment, for all messages of that moment. It is sent at once to a writer that asked (ACK_NOW), that
sent a message again, or that has sent a quarter of its window since its last ACK.
"""

from __future__ import annotations

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.insert_queue import Producer
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState
from async_loader.feeder.wire import (
    ACK_NOW,
    SENT_BEFORE,
    Ack,
    ErrorCode,
    Insert,
    Message,
    Plane,
    SlotInsert,
    Type,
)

_ACK_S = 1e-3
"""How long an ACK may be delayed if the writer does not wait for it."""
_PARTS = 4
"""An ACK is sent at once after this part of the window: a quarter."""


class InsertHandler:
    """Takes inserts from writers.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher) -> None:
        self._server_state, self._dispatcher = server_state, dispatcher
        self._now: dict[Producer, None] = {}  # writers to answer now
        self._later: dict[Producer, None] = {}  # writers to answer when it is due
        self.due: float | None = None
        kinds = Type.INSERT, Type.SLOT_INSERT
        dispatcher.handlers[Plane.INSERT] |= dict.fromkeys(kinds, self._insert)

    def _insert(self, session: Session, message: Message, body: Insert | SlotInsert) -> None:
        writer = session.writers.get(message.number)
        if (
            writer is None
            or writer.session != session.number
            or writer.insert_queue.rests
            or (isinstance(body, SlotInsert) and writer.slots is None)  # of an earlier opening
        ):
            text = f"session has no writer {message.number}, or its table is being loaded"
            raise Malformed(f"{text}: open it (again)", ErrorCode.UNKNOWN_WRITER)
        queue = writer.insert_queue
        if isinstance(body, SlotInsert):
            assert writer.slots is not None
            body = writer.slots.insert(body, queue.layout)
        waiting = session.in_flight_bytes
        if writer.queue and waiting + body.nbytes > self._server_state.limits.in_flight_bytes:
            raise Malformed(
                f"{waiting} bytes of this session wait to be inserted: keep to the window",
                ErrorCode.LIMIT,
            )
        writer.heard = session.heard
        seen = bool(message.flags & SENT_BEFORE)
        new = queue.receive(writer, message.sequence, body, message.schema, seen)
        writer.untold_bytes += body.nbytes
        writer.untold_rows += body.rows
        if not new or message.flags & ACK_NOW:
            self._now[writer] = None

    def _may_wait(self, writer: Producer) -> bool:
        """Return whether a writer has sent so much of its window that it may wait for its ACK."""
        return (
            _PARTS * writer.untold_bytes >= self._server_state.window_bytes
            or _PARTS * writer.untold_rows >= writer.window
        )

    def tell(self, at_once: bool = False) -> None:
        """Acknowledge inserted rows: now, or when it is due. See NOTE [late ACKs]."""
        told, self._now = self._now, {}
        for table in self._server_state.tables.values():
            for writer in table.insert_queue.moved:
                (told if self._may_wait(writer) else self._later)[writer] = None
            table.insert_queue.moved.clear()
        if self._later:
            now = self._server_state.clock()
            self.due = now + _ACK_S if self.due is None else self.due
            if at_once or now >= self.due:
                told, self._later = self._later | told, {}
        for writer in told:
            self._later.pop(writer, None)
            session = self._server_state.sessions.get(writer.session)
            if session is not None:
                self._acknowledge(session, writer)
        if not self._later:
            self.due = None

    def _acknowledge(self, session: Session, writer: Producer) -> None:
        applied, queue = writer.applied, writer.insert_queue
        writer.untold_bytes = writer.untold_rows = 0
        writer.window = queue.window_of(writer)
        ack = Ack(applied, self._server_state.window_bytes, writer.window)
        message = Message(ack, session.number, applied, writer.number, queue.layout.schema_id)
        self._dispatcher.answer(session, Plane.INSERT, message)
