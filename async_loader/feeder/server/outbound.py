"""The pull plane: PULLs, priorities and leases in, batches out. Knows no socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.server.calls import Calls
from async_loader.feeder.server.hall import Hall, Table
from async_loader.feeder.server.outlet import ReaderState
from async_loader.feeder.server.parcels import Parcel
from async_loader.feeder.server.ports import Plane
from async_loader.feeder.server.post import Post
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.trays import Tray
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


class Outbound:
    """Sends batches to readers.

    Parameters
    ----------
    hall : Hall
    post : Post
    calls : Calls
    """

    def __init__(self, hall: Hall, post: Post, calls: Calls) -> None:
        self._hall, self._post, self._calls = hall, post, calls
        self._bytes = self._slot_bytes = 0
        self._untold: dict[ReaderState, list[Parcel]] = {}  # batches that are ready, and still to be sent
        self._full: ReaderState | None = None  # whose batches make a message

    def handle(self, session: Session, message: Message) -> None:
        """Raises Malformed for what cannot be done."""
        body = message.body
        if message.type is Type.PING:  # perhaps from where it can be reached again
            for one in session.readers.values():
                one.outlet.want(one, session.heard)
            return
        if isinstance(body, OfTable):
            answer = self._calls.answer(session, message)
            if answer is not None:
                self._post.send(session, Plane.PULL, answer)
            return
        reader = session.readers.get(message.number)
        if isinstance(body, Pull | Priorities | Return) and reader is None:
            raise Malformed(f"session has no reader {message.number}: open it (again)", ErrorCode.UNKNOWN_READER)
        if reader is not None and isinstance(body, Pull):
            if reader.shared and reader.shelf is None:  # of an earlier opening: this one, which took its place, came first
                return
            if len(body.returned):
                reader.take_back(body.returned.tolist())
            reader.grant(body.granted, body.received if message.sequence > reader.opening else 0)
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
            self._tell_all()

    def _flow(self, table: Table) -> bool:
        intake, outlet, now = table.intake, table.outlet, self._hall.clock()
        self._bytes = sent = 0
        while True:
            came = intake.blocked and intake.advance()
            if not outlet.hungry and not self._calls.wanted(table):
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

    def _serve(self, table: Table, now: float) -> int:
        """Let a batch out, to a reader or to a call. See NOTE [whose turn] in outlet.py."""
        outlet, calls = table.outlet, self._calls
        first = calls.oldest(table)
        if first is None:
            return outlet.serve(self._deliver, now, 1)
        since = outlet.oldest
        if not table.table.uses_up or since is None:
            return calls.serve(table) + outlet.serve(self._deliver, now, 1)
        if first <= since:
            return calls.serve(table)
        return outlet.serve(self._deliver, now, 1) + calls.serve(table, may_draw=False)

    def _deliver(self, reader: ReaderState, parcel: Parcel) -> bool:
        if self._hall.sessions.get(reader.session) is None:
            return False
        self._bytes += reader.form.nbytes
        ready = self._untold.setdefault(reader, [])
        ready.append(parcel)
        if reader.tray is None:
            self._slot_bytes += reader.form.nbytes
        elif len(ready) == reader.tray.most:
            self._full = reader
        return True

    def _tell_all(self) -> None:
        for reader in list(self._untold):
            self._tell(reader)

    def _tell(self, reader: ReaderState) -> None:
        """Send what is ready for a reader; what cannot be sent is its outlet's again."""
        self._full = None
        parcels = self._untold.pop(reader)
        session = self._hall.sessions.get(reader.session)
        sent = 0
        if reader.tray is None:
            self._slot_bytes -= len(parcels) * reader.form.nbytes
            sent = 0 if session is None else self._tell_slots(session, reader, parcels)
        elif session is not None:
            sent = self._send_from(reader.tray, session, reader, parcels)
        for one in parcels[:sent]:
            one.spot = None  # it may be leased for long, and is in columns of its own then
        if sent < len(parcels):
            reader.outlet.unsent(reader, parcels[sent:])

    def _tell_slots(self, session: Session, reader: ReaderState, parcels: Sequence[Parcel]) -> int:
        places = [
            InSlot(one.spot.slot, one.spot.generation, one.rows, REDELIVERED if one.again else 0)
            for one in parcels
            if one.spot is not None
        ]
        first, schema = reader.sent - len(parcels), reader.form.schema_id
        told = self._post.tell(session, Plane.PULL, reader.number, first, SlotBatches(places), schema)
        return len(parcels) if told else 0

    def _send_from(self, tray: Tray, session: Session, reader: ReaderState, parcels: Sequence[Parcel]) -> int:
        sent, first = 0, reader.sent - len(parcels)
        for some in _alike(parcels, reader.batch_size):
            spots = [one.spot for one in some if one.spot is not None]
            body = Batch(sum(one.rows for one in some), tray.frames(spots))
            flags = REDELIVERED if some[0].again else 0
            message = Message(
                body, session.number, first + sent, reader.number, reader.form.schema_id, flags, session.version
            )  # fmt: skip
            if not self._post.send(session, Plane.PULL, message):
                break
            tray.sent(first + sent, spots)
            sent += len(some)
        tray.clear()
        return sent

    def complain(self) -> None:
        """Tell those who have waited for too long, and those who wait for what can never be."""
        now = self._hall.clock()
        for table in self._hall.tables.values():
            if table.rests:
                continue
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


def _alike(parcels: Sequence[Parcel], batch_size: int) -> Iterator[list[Parcel]]:
    """What can be in one message: whole batches of which all, or none, have rows that were sent before; a short one alone."""
    some: list[Parcel] = []
    for one in parcels:
        if some and (one.again is not some[0].again or one.rows < batch_size or some[0].rows < batch_size):
            yield some
            some = []
        some.append(one)
    yield some
