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
from async_loader.feeder.server.producer_streams import Receipt
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
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self, server_state: ServerState, dispatcher: Dispatcher, clock: Callable[[], float]
    ) -> None:
        self._server_state, self._dispatcher, self._clock = server_state, dispatcher, clock
        self._unsaid: dict[WriterState, bool] = {}  # writers to answer now; True: with a GAP
        self._later: dict[WriterState, None] = {}  # writers to answer when the delay is over
        self._due = 0.0

    def handle(self, session: Session, message: Message) -> None:
        """Take a message of a session. Raises Malformed if it cannot be taken."""
        body = message.body
        if not isinstance(body, Insert | SlotInsert):
            if message.type is Type.PING:
                return
            raise Malformed(f"{message.type.name} is not a message for a server's insert plane")
        writer = session.writers.get(message.number)
        if writer is None:
            raise Malformed(
                f"session has no writer {message.number}: open it (again)", ErrorCode.UNKNOWN_WRITER
            )
        if writer.insert_queue.rests:
            raise Malformed(
                f"table {writer.insert_queue.name!r} is being loaded: send this again later",
                ErrorCode.LIMIT,
            )
        if isinstance(body, SlotInsert):
            if writer.slots is None:
                # It was sent before the writer was opened again: ask for it once more.
                self._unsaid[writer] = True
                return
            body = writer.slots.insert(body, writer.insert_queue.layout)
        self._check_room(session, writer, body)
        writer.heard = session.heard
        seen = bool(message.flags & SENT_BEFORE)
        receipt = writer.insert_queue.receive(writer, message.sequence, body, message.schema, seen)
        if receipt is Receipt.GAP:
            self._unsaid[writer] = True
            return
        writer.untold_bytes += body.nbytes
        writer.untold_rows += body.rows
        if receipt is Receipt.AGAIN or message.flags & ACK_NOW:
            self._unsaid.setdefault(writer, False)

    def _may_wait(self, writer: WriterState) -> bool:
        """Return whether a writer has sent so much of its window that it may wait for its ACK."""
        return (
            _PARTS * writer.untold_bytes >= self._server_state.window_bytes
            or _PARTS * writer.untold_rows >= writer.window
        )

    def _check_room(self, session: Session, writer: WriterState, body: Insert) -> None:
        """Raise Malformed, LIMIT, if too many bytes of the session wait for their tables."""
        if not writer.producer.queue:
            return
        waiting = session.in_flight_bytes
        if waiting + body.nbytes > self._server_state.limits.in_flight_bytes:
            raise Malformed(
                f"{waiting} bytes of this session wait to be inserted: keep to the window",
                ErrorCode.LIMIT,
            )

    def left_s(self) -> float | None:
        """Return the seconds until `tell` has an ACK to send; ``None``: no ACK is delayed."""
        return max(0.0, self._due - self._clock()) if self._later else None

    def tell(self, at_once: bool = False) -> None:
        """Acknowledge inserted rows: now, or when it is due. See NOTE [late ACKs]."""
        unsaid, self._unsaid = self._unsaid, {}
        later = self._later
        for table in self._server_state.tables.values():
            if table.insert_queue.moved:
                if not later:
                    self._due = self._clock() + _ACK_S
                for producer in table.insert_queue.moved:
                    for writer in producer.writers:
                        if self._may_wait(writer):
                            unsaid.setdefault(writer, False)
                        else:
                            later[writer] = None
                table.insert_queue.moved.clear()
        if later and (at_once or self._clock() >= self._due):
            unsaid = dict.fromkeys(later, False) | unsaid
            later.clear()
        for writer, gap in unsaid.items():
            later.pop(writer, None)
            session = self._server_state.sessions.get(writer.session)
            if (
                session is not None
                and session.writers.get(writer.number) is writer
                and writer.fenced_by is None
            ):
                self._acknowledge(session, writer, gap)

    def _acknowledge(self, session: Session, writer: WriterState, gap: bool) -> None:
        """Send ACK or GAP.

        After a GAP received messages are sent again too, and dropped: gaps are rare.
        """
        applied = writer.told = writer.producer.applied
        writer.untold_bytes = writer.untold_rows = 0
        kind = Gap if gap else Ack
        writer.window = writer.insert_queue.window_of(writer)
        body = kind(applied, self._server_state.window_bytes, writer.window)
        self._dispatcher.tell(
            session,
            Plane.INSERT,
            writer.number,
            applied,
            body,
            writer.insert_queue.layout.schema_id,
        )

    def end(self, table: TableEntry, reason: str) -> None:
        """Send errors to the writers of a closed table."""
        for writer in table.insert_queue.give_up():
            session = self._server_state.sessions.get(writer.session)
            if session is not None:
                self._dispatcher.error(
                    session,
                    Plane.INSERT,
                    writer.number,
                    writer.producer.applied,
                    ErrorCode.UNSUPPORTED,
                    reason,
                )
