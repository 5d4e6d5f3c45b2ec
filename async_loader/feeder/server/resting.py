"""Messages for tables that are being loaded: kept, in order, until they are not. See NOTE [slow work] in jobs.py."""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.errors import Malformed
from async_loader.feeder.server.hall import Hall, Table
from async_loader.feeder.server.ports import Plane
from async_loader.feeder.server.post import Handle, Post
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import ErrorCode, Message, OfTable, OpenReader, OpenWriter, Sample, Type

MOST = 1 << 12
_OF_WRITERS, _OF_READERS = (Type.CLOSE_WRITER,), (Type.CLOSE_READER, Type.PULL, Type.PRIORITIES, Type.RETURN)


@dataclass(slots=True, eq=False)
class Kept:
    """A message for later."""

    table: Table
    plane: Plane
    session: Session
    message: Message
    handle: Handle


class Resting:
    """Keeps messages of the control and pull planes.

    Parameters
    ----------
    hall : Hall
    post : Post
    """

    def __init__(self, hall: Hall, post: Post) -> None:
        self._hall, self._post = hall, post
        self._kept: list[Kept] = []

    def keeps(self, plane: Plane, session: Session, message: Message, handle: Handle) -> bool:
        """Whether the message waits until its table can be used. Raises Malformed, LIMIT."""
        resting = [table for table in self._hall.tables.values() if table.rests]
        table = self._table_of(session, message) if resting else None
        if table is None or table not in resting:
            return False
        if len(self._kept) >= MOST:
            text = f"{MOST} messages wait until table {table.name!r} is loaded, which is all that can: ask later"
            raise Malformed(text, ErrorCode.LIMIT)
        self._kept.append(Kept(table, plane, session, message, handle))
        return True

    def _table_of(self, session: Session, message: Message) -> Table | None:
        body, kind = message.body, message.type
        if isinstance(body, OfTable | OpenReader | OpenWriter):
            return None if isinstance(body, Sample) else self._hall.tables.get(body.table)
        for table in self._hall.tables.values():
            if kind in _OF_WRITERS:
                writer = session.writers.get(message.number)
                if writer is not None and writer.intake is table.intake:
                    return table
            elif kind in _OF_READERS:
                reader = session.readers.get(message.number)
                if reader is not None and reader.outlet is table.outlet:
                    return table
        return None

    def let_go(self) -> None:
        """Do what was kept for tables that can be used again."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for one in kept:
            if one.table.rests:
                self._kept.append(one)
            else:
                self._post.late(one.plane, one.session, one.message, one.handle)
