"""SAMPLEs that wait for a table, in order.

See NOTE [whose turn] in batch_scheduler.py: where a draw uses rows up, the oldest of the waiting
readers and calls goes first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from async_loader.errors import (
    AsyncLoaderError,
    ConfigError,
    CorruptCheckpoint,
    Malformed,
    NotEnoughData,
    OutOfMemory,
    SchemaError,
    Timeout,
)
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.outgoing_batches import OutgoingBatch
from async_loader.feeder.server.reader_state import ReaderState
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    Error,
    ErrorCode,
    Message,
    OpenReader,
    Plane,
    Sample,
    Sampled,
    spec_of,
)

MOST_ASKED = 1 << 12
"""SAMPLEs that wait for one table."""
_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (NotEnoughData, ErrorCode.NOT_ENOUGH),
    (SchemaError, ErrorCode.SCHEMA),
    (ConfigError, ErrorCode.CONFIG),
    (Timeout, ErrorCode.TIMEOUT),
    (OutOfMemory, ErrorCode.OUT_OF_MEMORY),
    (CorruptCheckpoint, ErrorCode.CORRUPT),
    (AsyncLoaderError, ErrorCode.UNSUPPORTED),
    (OSError, ErrorCode.FILES),
)


def refused(error: BaseException) -> Malformed:
    """Return the ERROR of an exception, with its text. Raises errors of this package itself."""
    if isinstance(error, Malformed):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            number = error.errno if isinstance(error, OSError) and code is ErrorCode.FILES else None
            return Malformed(
                str(error), code, error.there if isinstance(error, NotEnoughData) else number
            )
    raise error


@dataclass(slots=True, eq=False)
class PendingSample:
    """A SAMPLE that was not answered yet.

    Attributes
    ----------
    since, until : float, float | None
        On the server's clock.
    """

    session: Session
    message: Message
    body: Sample
    since: float
    until: float | None


class SampleQueue:
    """Answers SAMPLEs.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher) -> None:
        self._server_state, self._dispatcher = server_state, dispatcher
        self._asked: dict[TableEntry, list[PendingSample]] = {}
        for table in server_state.tables.values():
            table.calls_waiting = functools.partial(self.waiting, table)
            table.scheduler.calls_wait = functools.partial(self.wanted, table)

    def add(self, session: Session, message: Message, table: TableEntry, body: Sample) -> None:
        now = self._server_state.clock()
        reader = session.readers.get(message.number)
        if reader is not None and reader.batch_ring is not None and body.slots:
            reader.take_back(body.slots)
        if reader is not None and body.unused:
            table.scheduler.take_back(reader, body.unused)
        waiting = self._asked.setdefault(table, [])
        if len(waiting) >= MOST_ASKED:
            text = (
                f"{MOST_ASKED} calls wait for table {table.name!r}, which is the limit: ask later"
            )
            raise Malformed(text, ErrorCode.LIMIT)
        until = None if body.timeout_s is None else now + body.timeout_s
        waiting.append(PendingSample(session, message, body, now, until))

    def wanted(self, table: TableEntry) -> bool:
        """Return whether a SAMPLE waits for this table."""
        return bool(self._asked.get(table))

    def oldest(self, table: TableEntry) -> float | None:
        """Return since when the first SAMPLE waits."""
        waiting = self._asked.get(table)
        return waiting[0].since if waiting else None

    def serve(self, table: TableEntry, may_draw: bool = True) -> int:
        """Answer SAMPLEs; return how many batches were sent.

        Without ``may_draw`` only timeouts are sent.
        """
        waiting, now, went = self._asked.get(table) or [], self._server_state.clock(), 0
        left: list[PendingSample] = []
        for one in waiting:
            try:
                done = may_draw and not table.rests and self._attempt(table, one)
                over = done or self._gave_up(table, one, now)
            except (AsyncLoaderError, OSError) as error:
                done = over = True
                self._refuse(one, refused(error))
            except Exception as error:  # of one call: it must end neither the others nor the loop
                done = over = True
                self._refuse(one, self._dispatcher.fault(one.message.type.name, error))
            went += done
            if over:
                continue
            left.append(one)
            may_draw = may_draw and not table.table.uses_up
        if len(left) < len(waiting):
            self._asked[table] = left
        return went

    def _attempt(self, table: TableEntry, one: PendingSample) -> bool:
        """Answer with a batch; return False if there is no batch yet. Errors are for `serve`."""
        if self._server_state.sessions.get(one.session.number) is not one.session:
            return True
        if table.table.schema is None:
            return False
        reader = self._reader(table, one)
        shared = reader.has_slot
        if not shared and not self._dispatcher.has_room(
            one.session, Plane.PULL, reader.form.nbytes
        ):
            return False  # those before it have to leave first
        outgoing_batch = table.scheduler.draw(reader)
        if outgoing_batch is None:
            return False
        self._hand_over(table, one, reader, outgoing_batch, shared)
        return True

    def _reader(self, table: TableEntry, one: PendingSample) -> ReaderState:
        """Return the reader for calls of this kind; the first call opens it."""
        session, number, body = one.session, one.message.number, one.body
        reader, asks = session.readers.get(number), (body.table, body.batch_size, body.view)
        if reader is not None and reader.asks == asks:
            return reader
        if reader is not None:
            session.close_reader(number)
            reader.scheduler.close(reader)
        session.check_room("readers")
        wanted = OpenReader(table=body.table, batch_size=body.batch_size, view=body.view)
        reader = table.scheduler.open(session.number, number, wanted, one.message.sequence)
        reader.asks = asks
        session.readers[number] = reader
        return reader

    def _hand_over(
        self,
        table: TableEntry,
        one: PendingSample,
        reader: ReaderState,
        outgoing_batch: OutgoingBatch,
        shared: bool,
    ) -> None:
        batch_slot, send_buffer, lease = outgoing_batch.batch_slot, reader.send_buffer, None
        assert batch_slot is not None
        assert send_buffer is not None
        if table.table.leased:
            lease = reader.sent
        known = one.body.known == reader.form.schema_id
        schema = None if known else spec_of(reader.schema)
        eta = None if known else reader.drawing.eta
        body = Sampled(
            rows=outgoing_batch.rows,
            schema=schema,
            slot=batch_slot.slot if shared else None,
            lease=lease,
            eta=eta,
        )
        data = None if shared else send_buffer.frames([batch_slot])[0]
        number, outgoing_batch.batch_slot = reader.sent, None
        table.scheduler.handed_over(reader, outgoing_batch)
        reply = one.message.reply(body, schema=reader.form.schema_id, data=data)
        sent = False
        try:
            sent = self._dispatcher.answer(one.session, Plane.PULL, reply)
        finally:  # an answer that did not go out leaves no slot taken, and no row
            if not shared:
                if sent:
                    send_buffer.sent(number, [batch_slot])
                send_buffer.clear()
            elif not sent and reader.batch_ring is not None:
                reader.batch_ring.put_back(batch_slot)
            if not sent and lease is not None:
                table.scheduler.take_back(reader, (lease,))

    def _gave_up(self, table: TableEntry, one: PendingSample, now: float) -> bool:
        """Answer with an error if its time is over, or if it does not wait; return whether."""
        count = one.body.batch_size
        at_once = not one.body.waits and table.buffer.limiter is None and not table.rests
        over = one.until is not None and one.until <= now
        if not at_once and not over:
            return False
        if at_once:
            reader = one.session.readers.get(one.message.number)
            what = table.table if reader is None else reader.drawing
            self._refuse(one, refused(what.nothing(count)))
        else:
            why = (
                f"{one.body.timeout_s:g} s have passed, and still cannot sample: "
                f"{self._why_not(table, one)}"
            )
            self._refuse(one, Malformed(why, ErrorCode.TIMEOUT))
        return True

    def _why_not(self, table: TableEntry, one: PendingSample) -> str:
        if table.rests:
            return "the table is being loaded"
        if table.table.schema is None:
            return "no step has been added yet"
        reader = one.session.readers.get(one.message.number)
        try:
            why = None if reader is None else reader.drawing.why_not(one.body.batch_size)
        except AsyncLoaderError as error:
            why = str(error)
        return why or "others come first"

    def _refuse(self, one: PendingSample, error: Malformed) -> None:
        reply = one.message.reply(Error.of_malformed(error))
        self._dispatcher.counters.refused(error.code)
        self._dispatcher.answer(one.session, Plane.PULL, reply)

    def forget(self, session: Session) -> None:
        """Forget the SAMPLEs of a session that ended."""
        for table, waiting in self._asked.items():
            self._asked[table] = [one for one in waiting if one.session is not session]

    def end(self, table: TableEntry, reason: str) -> None:
        """Answer all SAMPLEs of a closed table with an error."""
        for one in self._asked.pop(table, ()):
            self._refuse(one, Malformed(reason, ErrorCode.UNSUPPORTED))

    def waiting(self, table: TableEntry) -> list[tuple[str, float]]:
        """Return how many calls wait, why, and since when on the server's clock."""
        waiting = self._asked.get(table)
        if not waiting:
            return []
        who = "1 call" if len(waiting) == 1 else f"{len(waiting)} calls"
        text = f"{who} to sample {waiting[0].body.batch_size}: {self._why_not(table, waiting[0])}"
        return [(text, waiting[0].since)]

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the time of a waiting call is over."""
        moments = [
            one.until
            for waiting in self._asked.values()
            for one in waiting
            if one.until is not None
        ]
        return max(0.0, min(moments) - now) if moments else None
