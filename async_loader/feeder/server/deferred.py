"""Messages for tables that are being loaded, in order.

See NOTE [slow work] in background_jobs.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher, Handle
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    ErrorCode,
    Message,
    OfTable,
    OpenReader,
    OpenWriter,
    Plane,
    Type,
)

MOST = 1 << 12
_OF_WRITERS, _OF_READERS = (
    (Type.CLOSE_WRITER,),
    (Type.CLOSE_READER, Type.PULL, Type.RETURN, Type.TOTALS),
)


@dataclass(slots=True, eq=False)
class DeferredMessage:
    """A message that waits for its table."""

    table: TableEntry
    plane: Plane
    session: Session
    message: Message
    handle: Handle


class DeferredMessages:
    """Keeps messages about a table while a checkpoint is loaded into it, and handles them later.

    Of the control and the pull plane; in the order of their arrival.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher) -> None:
        self._server_state, self._dispatcher = server_state, dispatcher
        self._kept: list[DeferredMessage] = []

    def keeps(self, plane: Plane, session: Session, message: Message, handle: Handle) -> bool:
        """Keep a message if its table is being loaded; return whether it is.

        Raises Malformed, LIMIT.
        """
        resting = [table for table in self._server_state.tables.values() if table.rests]
        table = self._table_of(session, message) if resting else None
        if table is None or table not in resting:
            return False
        if len(self._kept) >= MOST:
            text = (
                f"{MOST} messages wait until table {table.name!r} is loaded, which is the limit: "
                "ask later"
            )
            raise Malformed(text, ErrorCode.LIMIT)
        self._kept.append(DeferredMessage(table, plane, session, message, handle))
        return True

    def _table_of(self, session: Session, message: Message) -> TableEntry | None:
        body, kind = message.body, message.type
        if isinstance(body, OfTable | OpenReader | OpenWriter):
            call = isinstance(body, OpenReader) and body.wait_s is not None
            return None if call else self._server_state.tables.get(body.table)
        for table in self._server_state.tables.values():
            if kind in _OF_WRITERS:
                writer = session.writers.get(message.number)
                if writer is not None and writer.insert_queue is table.insert_queue:
                    return table
            elif kind in _OF_READERS:
                reader = session.readers.get(message.number)
                call = kind is Type.PULL and reader is not None and reader.wait_s is not None
                if reader is not None and reader.scheduler is table.scheduler and not call:
                    return table
        return None

    def let_go(self) -> None:
        """Handle the kept messages of tables that can be used again."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for one in kept:
            if one.table.rests:
                self._kept.append(one)
            else:
                self._dispatcher.late(one.plane, one.session, one.message, one.handle)
