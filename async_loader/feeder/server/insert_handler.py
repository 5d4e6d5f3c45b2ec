"""The insert plane: INSERTs in, ACKs and GAPs out.

# NOTE [late ACKs]
An ACK is cumulative, so that one answers many messages, and each costs the writer's process more
than the rows of a small message do. So the ACK of a writer that does not wait for it is sent after
a moment, for all messages of that moment. It is sent at once to a writer that asked (ACK_NOW), that
sent a message again, that misses one, or that has sent a quarter of its window since its last ACK.
"""

from __future__ import annotations

from collections.abc import Callable

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.insert_queue import WriterState
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    ACK_NOW,
    SENT_BEFORE,
    Ack,
    ErrorCode,
    Gap,
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
    news : callable
        Called with a table whose inserts have gone in.
    """

    def __init__(
        self,
        server_state: ServerState,
        dispatcher: Dispatcher,
        news: Callable[[TableEntry], None],
    ) -> None:
        self._server_state, self._dispatcher, self._news = server_state, dispatcher, news
        self._unsaid: dict[WriterState, type[Ack]] = {}  # writers to answer now
        self._later: dict[WriterState, type[Ack]] = {}  # writers to answer when it is due
        self.due: float | None = None
        dispatcher.handlers[Plane.INSERT] |= {
            Type.INSERT: self._insert,
            Type.SLOT_INSERT: self._insert,
        }

    def _insert(self, session: Session, message: Message, body: Insert | SlotInsert) -> None:
        writer = session.writers.get(message.number)
        if writer is None:
            raise Malformed(
                f"session has no writer {message.number}: open it (again)", ErrorCode.UNKNOWN_WRITER
            )
        queue = writer.insert_queue
        if queue.rests:
            raise Malformed(
                f"table {queue.name!r} is being loaded: send this again later", ErrorCode.LIMIT
            )
        if isinstance(body, SlotInsert):
            if writer.slots is None:
                # It was sent before the writer was opened again: ask for it once more.
                self._unsaid[writer] = Gap
                return
            body = writer.slots.insert(body, queue.layout)
        waiting = session.in_flight_bytes
        if writer.producer.queue and (
            waiting + body.nbytes > self._server_state.limits.in_flight_bytes
        ):
            raise Malformed(
                f"{waiting} bytes of this session wait to be inserted: keep to the window",
                ErrorCode.LIMIT,
            )
        writer.heard = session.heard
        seen = bool(message.flags & SENT_BEFORE)
        answer = queue.receive(writer, message.sequence, body, message.schema, seen)
        if answer is Gap:
            self._unsaid[writer] = Gap
            return
        writer.untold_bytes += body.nbytes
        writer.untold_rows += body.rows
        if answer is Ack or message.flags & ACK_NOW:
            self._unsaid.setdefault(writer, Ack)

    def _may_wait(self, writer: WriterState) -> bool:
        """Return whether a writer has sent so much of its window that it may wait for its ACK."""
        return (
            _PARTS * writer.untold_bytes >= self._server_state.window_bytes
            or _PARTS * writer.untold_rows >= writer.window
        )

    def tell(self, at_once: bool = False) -> None:
        """Acknowledge inserted rows: now, or when it is due. See NOTE [late ACKs]."""
        unsaid, self._unsaid = self._unsaid, {}
        for table in self._server_state.tables.values():
            if table.insert_queue.moved:
                self._news(table)
                for producer in table.insert_queue.moved:
                    for writer in producer.writers:
                        places = unsaid if self._may_wait(writer) else self._later
                        places.setdefault(writer, Ack)
                table.insert_queue.moved.clear()
        if self._later:
            now = self._server_state.clock()
            self.due = now + _ACK_S if self.due is None else self.due
            if at_once or now >= self.due:
                unsaid = self._later | unsaid
                self._later = {}
        for writer, kind in unsaid.items():
            self._later.pop(writer, None)
            session = self._server_state.sessions.get(writer.session)
            if (
                session is not None
                and session.writers.get(writer.number) is writer
                and writer.fenced_by is None
            ):
                self._acknowledge(session, writer, kind)
        if not self._later:
            self.due = None

    def _acknowledge(self, session: Session, writer: WriterState, kind: type[Ack]) -> None:
        """Send ACK or GAP.

        After a GAP received messages are sent again too, and dropped: gaps are rare.
        """
        applied, queue = writer.producer.applied, writer.insert_queue
        writer.untold_bytes = writer.untold_rows = 0
        writer.window = queue.window_of(writer)
        body = kind(applied, self._server_state.window_bytes, writer.window)
        schema = queue.layout.schema_id
        self._dispatcher.tell(session, Plane.INSERT, writer.number, applied, body, schema)

    def end(self, table: TableEntry, reason: str) -> None:
        """Send errors to the writers of a closed table."""
        for writer in table.insert_queue.give_up():
            session = self._server_state.sessions.get(writer.session)
            if session is not None:
                applied = writer.producer.applied
                error = Malformed(reason, ErrorCode.UNSUPPORTED)
                self._dispatcher.error(session, Plane.INSERT, writer.number, applied, error)
