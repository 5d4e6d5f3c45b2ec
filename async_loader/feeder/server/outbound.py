"""The pull plane: PULLs, priorities and leases in, batches out. Knows no socket."""

from __future__ import annotations

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.hall import Hall, Table
from async_loader.feeder.server.outlet import ReaderState
from async_loader.feeder.server.parcels import Parcel
from async_loader.feeder.server.ports import Plane
from async_loader.feeder.server.post import Post
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.wire import Applied, End, ErrorCode, Message, Priorities, Pull, Return, SlotBatches, Type

REDELIVERED = 0x02
"""BATCH: rows of it were sent before, to a learner that did not give them back."""
_BATCHES = 16  # of one table in one round
_BYTES = 16 << 20
_TOLD_BYTES = 1 << 20
"""In slots, of which readers are told without waiting for the others of the round."""


class Outbound:
    """Sends batches to readers.

    Parameters
    ----------
    hall : Hall
    post : Post
    """

    def __init__(self, hall: Hall, post: Post) -> None:
        self._hall, self._post = hall, post
        self._bytes = self._slot_bytes = 0
        self._in_slots: dict[ReaderState, list[Parcel]] = {}  # of which readers are still to be told

    def handle(self, session: Session, message: Message) -> None:
        """Raises Malformed for what cannot be done."""
        body = message.body
        if message.type is Type.PING:  # perhaps from where it can be reached again
            for one in session.readers.values():
                one.outlet.want(one, session.heard)
            return
        reader = session.readers.get(message.number)
        if isinstance(body, Pull | Priorities | Return) and reader is None:
            raise Malformed(f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER)
        if reader is not None and isinstance(body, Pull):
            if reader.shared and reader.shelf is None:  # of an earlier opening: this one, which took its place, came first
                return
            if len(body.returned):
                reader.take_back(body.returned.tolist())
            reader.grant(body.granted)
            reader.outlet.want(reader, session.heard)
        elif reader is not None and isinstance(body, Priorities):
            self._post.send(session, Plane.PULL, message.reply(self._applied(reader, body)))
        elif reader is not None and isinstance(body, Return):
            reader.outlet.give_back(reader, body.leases.tolist())
        else:
            raise Malformed(f"{message.type.name} is nothing for a server's pull plane")

    def _applied(self, reader: ReaderState, body: Priorities) -> Applied:
        try:
            done = reader.outlet.table.prioritize(body.ids, body.values)
        except AsyncLoaderError as error:
            raise Malformed(str(error), ErrorCode.UNSUPPORTED) from error
        return Applied(done.applied, done.stale)

    def flow(self, table: Table) -> bool:
        """Let batches out and inserts in, as the table allows; each makes room for the other. Whether there may be more."""
        try:
            return self._flow(table)
        finally:
            self._tell()

    def _flow(self, table: Table) -> bool:
        intake, outlet, now = table.intake, table.outlet, self._hall.clock()
        self._bytes = sent = 0
        while True:
            came = intake.blocked and intake.advance()
            if not outlet.hungry:
                return False
            went = outlet.serve(self._deliver, now, 1)
            sent += went
            if self._slot_bytes >= _TOLD_BYTES:
                self._tell()
            if sent >= _BATCHES or self._bytes >= _BYTES:
                return True
            if not went and not came:
                return False

    def _deliver(self, reader: ReaderState, parcel: Parcel) -> bool:
        session = self._hall.sessions.get(reader.session)
        if session is None:
            return False
        nbytes = parcel.rows * reader.layout.row_bytes
        self._bytes += nbytes
        if parcel.place is not None:
            self._in_slots.setdefault(reader, []).append(parcel)
            self._slot_bytes += nbytes
            return True
        flags = REDELIVERED if parcel.again else 0
        layout = reader.layout.schema_id
        message = Message(parcel.body, session.number, reader.sent, reader.number, layout, flags, session.version)
        return self._post.send(session, Plane.PULL, message)

    def _tell(self) -> None:
        """Which slots were filled, all those of a reader in one message."""
        filled, self._in_slots, self._slot_bytes = self._in_slots, {}, 0
        for reader, parcels in filled.items():
            session = self._hall.sessions.get(reader.session)
            places = [
                one.place._replace(flags=REDELIVERED) if one.again else one.place for one in parcels if one.place is not None
            ]  # fmt: skip
            first, layout = reader.sent - len(parcels), reader.layout.schema_id
            if session is None or not self._post.tell(
                session, Plane.PULL, reader.number, first, SlotBatches(places), layout
            ):  # fmt: skip
                reader.outlet.unsent(reader, parcels)

    def complain(self) -> None:
        """Tell those who have waited for too long, and those who wait for what can never be."""
        now = self._hall.clock()
        for table in self._hall.tables.values():
            for reader, reason in table.outlet.failed():
                self._error(reader, ErrorCode.UNSUPPORTED, reason)
            for reader, reason in table.outlet.overdue(now):
                self._error(reader, ErrorCode.TIMEOUT, reason)

    def _error(self, reader: ReaderState, code: ErrorCode, reason: str) -> None:
        session = self._hall.sessions.get(reader.session)
        if session is not None:
            self._post.error(session, Plane.PULL, reader.number, reader.sent, code, reason)

    def end(self, table: Table, reason: str) -> None:
        """Nothing more comes out of this table."""
        for reader in table.outlet.readers:
            session = self._hall.sessions.get(reader.session)
            if session is not None:
                self._post.tell(session, Plane.PULL, reader.number, 0, End(reason=reason, count=reader.sent))
