"""What a client's table is asked to do, one message each: sample, get, update, delete, clear, save, load. Has no socket.

A SAMPLE that cannot be answered yet waits with its table, in order; see NOTE [whose turn] in batch_scheduler.py: where drawing
uses something up, the oldest of those that wait, readers and calls, goes first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader import tree
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
from async_loader.feeder.plain_values import limiter_plain
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.batch_scheduler import ReaderState, view_of
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.folders import Folders
from async_loader.feeder.server.outgoing_batches import OutgoingBatch
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.sockets import Plane
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    AboutReply,
    Applied,
    BatchForm,
    Clear,
    Control,
    Delete,
    Done,
    Error,
    ErrorCode,
    Get,
    Got,
    Load,
    Message,
    OfTable,
    OpenReader,
    Prioritize,
    Sample,
    Sampled,
    Save,
    Saved,
    Type,
    Update,
    spec_of,
    tensors_of,
)
from async_loader.schema import Field, Schema

MOST_ASKED = 1 << 12
"""SAMPLEs that wait for one table."""
_MOST_WAITING = 8
"""Of those that wait, which ABOUT_REPLY names."""
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
    """What a call raised, as the ERROR that says it in the same words. Raises what is a fault of this package."""
    if isinstance(error, Malformed):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            number = error.errno if isinstance(error, OSError) and code is ErrorCode.FILES else None
            return Malformed(str(error), code, error.there if isinstance(error, NotEnoughData) else number)
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


class CallHandler:
    """Answers calls of tables.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Post
    jobs : Jobs
    folders : Folders
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher, jobs: BackgroundJobs, folders: Folders) -> None:
        self._server_state, self._dispatcher, self._jobs, self._folders = server_state, dispatcher, jobs, folders
        self._asked: dict[TableEntry, list[PendingSample]] = {}
        for table in server_state.tables.values():
            table.calls_waiting = functools.partial(self.waiting, table)
        self._answers: dict[Type, Callable[[Session, Message, TableEntry], Message | None]] = {
            Type.ABOUT: self._about,
            Type.CLEAR: self._clear,
            Type.SAVE: self._save,
            Type.LOAD: self._load,
            Type.SAMPLE: self._sample,
            Type.GET: self._get,
            Type.UPDATE: self._update,
            Type.DELETE: self._delete,
            Type.PRIORITIZE: self._prioritize,
        }

    def answer(self, session: Session, message: Message) -> Message | None:
        """What to tell now; ``None``: later. Raises Malformed for what is not to be done."""
        body = message.body
        assert isinstance(body, OfTable)
        if session.version < 3:
            text = f"{message.type.name} is of version 3, this session of {session.version}: update the older side"
            raise Malformed(text, ErrorCode.UNSUPPORTED)
        table = self._server_state.table(body.table)
        if table.table.closed:
            raise Malformed(f"table {table.name!r} was closed", ErrorCode.UNSUPPORTED)
        try:
            return self._answers[message.type](session, message, table)
        except (AsyncLoaderError, OSError) as error:
            raise refused(error) from error

    # -- what a table is -------------------------------------------------------------------------

    def _about(self, session: Session, message: Message, table: TableEntry) -> Message:
        buffer = table.buffer
        stats, schema, limiter = table.stats(), buffer.schema, buffer.limiter
        plain = {name: getattr(stats, name) for name in stats.__dataclass_fields__ if name != "waiting"}
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float)}
        waiting, now = table.waiting()[:_MOST_WAITING], self._server_state.clock()
        waits = {"waiting": [text for text, _ in waiting], "waited_s": [max(0.0, now - since) for _, since in waiting]}
        reply = AboutReply(
            schema=None if schema is None else spec_of(schema),
            capacity=buffer.capacity,
            nbytes=buffer.nbytes,
            limiter=limiter_plain(limiter),
            sampler=repr(table.table.sampler)[:512],
            stats={**numbers, **waits},
            no_priorities=table.table.no_priorities,
        )  # fmt: skip
        return message.reply(reply)

    # -- by id -----------------------------------------------------------------------------------

    def _get(self, session: Session, message: Message, table: TableEntry) -> Message:
        body = message.body
        assert isinstance(body, Get)
        view = view_of(table.scheduler, body.view)
        batch = table.buffer.get(_ids(message), view=view)
        structure = tree.structure_of(batch)
        columns = [np.ascontiguousarray(one) for one in tree.leaves(batch, structure)]
        rows = len(columns[0])
        fields = zip(tree.names(structure), columns, strict=True)
        schema = Schema(structure, tuple(Field(name=name, shape=one.shape[1:], dtype=one.dtype) for name, one in fields))
        form = BatchForm.of(schema, max(1, rows))
        self._check_size(form, rows)
        reply = Got(rows=rows, schema=spec_of(schema))
        data = form.batch(columns).frames[0] if rows else None
        return message.reply(reply, schema=form.schema_id, data=data)

    def _check_size(self, form: BatchForm, rows: int) -> None:
        most = self._server_state.limits.message_bytes
        if form.nbytes > most:
            text = f"{rows} rows take {form.nbytes} bytes, a message {most}: ask for fewer rows"
            raise Malformed(text, ErrorCode.TOO_LARGE)

    def _update(self, session: Session, message: Message, table: TableEntry) -> Message:
        body = message.body
        assert isinstance(body, Update)
        values: dict[str, Any] = tensors_of(body.specs, memoryview(message.data)[8 * body.count :])
        return self._applied(message, table.buffer.update(_ids(message), **values))

    def _delete(self, session: Session, message: Message, table: TableEntry) -> Message:
        assert isinstance(message.body, Delete)
        return self._applied(message, table.buffer.delete(_ids(message)))

    def _prioritize(self, session: Session, message: Message, table: TableEntry) -> Message:
        body = message.body
        assert isinstance(body, Prioritize)
        values = np.frombuffer(memoryview(message.data)[8 * body.count :], np.float64)
        return self._applied(message, table.buffer.update_priorities(_ids(message), values.copy()))

    def _applied(self, message: Message, done: Any) -> Message:
        return message.reply(Applied(done.applied, done.stale))

    def _clear(self, session: Session, message: Message, table: TableEntry) -> Message:
        assert isinstance(message.body, Clear)
        table.buffer.clear()
        table.scheduler.forget_rows()
        return message.reply(Done())

    # -- checkpoints, see NOTE [slow work] in jobs.py ----------------------------------------------

    def _save(self, session: Session, message: Message, table: TableEntry) -> None:
        body = message.body
        assert isinstance(body, Save)
        folder = self._folders.of(table.name, body.path)

        def work() -> Saved:
            folder.parent.mkdir(parents=True, exist_ok=True)
            report: Any = table.buffer.save(folder)
            return Saved(
                kind=report.kind, number=report.number, nbytes=report.nbytes, duration_s=report.duration_s,
                pause_s=report.pause_s, rows=report.rows,
            )  # fmt: skip

        self._jobs.add(work, lambda result: self._over(session, message, result))

    def _load(self, session: Session, message: Message, table: TableEntry) -> None:
        body = message.body
        assert isinstance(body, Load)
        folder = self._folders.of(table.name, body.path)

        def over(result: Any) -> None:
            table.rests = False
            if not isinstance(result, BaseException):
                self._begin_anew(table)
            self._over(session, message, result)

        def work() -> Done:
            table.buffer.load(folder, number=body.number)
            return Done()

        self._jobs.add(work, over)
        table.rests = True

    def _begin_anew(self, table: TableEntry) -> None:
        """The table holds something else: what was known of its rows and streams is not true any more."""
        table.begin_anew()
        for session in self._server_state.sessions:
            for number, reader in list(session.readers.items()):
                if reader.scheduler is table.scheduler:
                    table.scheduler.close(reader)
                    del session.readers[number]
                    if reader.asks is None:
                        text = f"table {table.name!r} was loaded: open its readers again"
                        self._dispatcher.error(session, Plane.PULL, number, 0, ErrorCode.UNKNOWN_READER, text)

    def _over(self, session: Session, message: Message, result: Control | Done | BaseException) -> None:
        if self._server_state.sessions.get(session.number) is not session:
            return
        if isinstance(result, BaseException):
            try:
                error = refused(result)
            except BaseException as fault:
                error = Malformed(f"{type(fault).__name__}: {fault}", ErrorCode.INTERNAL)
            result = Error.of(ErrorCode(error.code), str(error), error.expected)
        self._dispatcher.send(session, Plane.CONTROL, message.reply(result))

    # -- samples -----------------------------------------------------------------------------------

    def _sample(self, session: Session, message: Message, table: TableEntry) -> None:
        body, now = message.body, self._server_state.clock()
        assert isinstance(body, Sample)
        reader = session.readers.get(message.number)
        if reader is not None and reader.batch_ring is not None and body.slots:
            reader.take_back(body.slots)
        if reader is not None and body.unused:
            table.scheduler.take_back(reader, body.unused)
        waiting = self._asked.setdefault(table, [])
        if len(waiting) >= MOST_ASKED:
            text = f"{MOST_ASKED} calls wait for table {table.name!r}, which is all that can: ask later"
            raise Malformed(text, ErrorCode.LIMIT)
        until = None if body.timeout_s is None else now + body.timeout_s
        waiting.append(PendingSample(session, message, body, now, until))

    def wanted(self, table: TableEntry) -> bool:
        """Whether a SAMPLE waits for this table."""
        return bool(self._asked.get(table))

    def oldest(self, table: TableEntry) -> float | None:
        """Since when the first waits."""
        waiting = self._asked.get(table)
        return waiting[0].since if waiting else None

    def serve(self, table: TableEntry, may_draw: bool = True) -> int:
        """Answer what can be answered; how many batches that were. Without ``may_draw`` others come first."""
        waiting, now, went = self._asked.get(table) or [], self._server_state.clock(), 0
        left: list[PendingSample] = []
        for one in waiting:
            done = may_draw and not table.rests and self._attempt(table, one)
            went += done
            if done or self._gave_up(table, one, now):
                continue
            left.append(one)
            may_draw = may_draw and not table.table.uses_up
        if len(left) < len(waiting):
            self._asked[table] = left
        return went

    def _attempt(self, table: TableEntry, one: PendingSample) -> bool:
        """Whether it was answered, with a batch or with what is wrong with it."""
        if self._server_state.sessions.get(one.session.number) is not one.session:
            return True
        try:
            if table.table.schema is None:
                return False
            reader = self._reader(table, one)
            shared = reader.has_slot
            outgoing_batch = table.scheduler.draw(reader)
            if outgoing_batch is None:
                return False
            self._hand_over(table, one, reader, outgoing_batch, shared)
        except (AsyncLoaderError, OSError) as error:
            self._refuse(one, refused(error))
        return True

    def _reader(self, table: TableEntry, one: PendingSample) -> ReaderState:
        """The reader for calls of this kind, opened with the first of them."""
        session, number, body = one.session, one.message.number, one.body
        reader, asks = session.readers.get(number), (body.table, body.batch_size, body.view)
        if reader is not None and reader.asks == asks:
            return reader
        if reader is not None:
            del session.readers[number]
            reader.scheduler.close(reader)
        session.check_room()
        wanted = OpenReader(table=body.table, batch_size=body.batch_size, view=body.view)
        reader = table.scheduler.open(session.number, number, wanted, one.message.sequence)
        reader.asks = asks
        session.readers[number] = reader
        return reader

    def _hand_over(
        self, table: TableEntry, one: PendingSample, reader: ReaderState, outgoing_batch: OutgoingBatch, shared: bool
    ) -> None:
        batch_slot, send_buffer, lease = outgoing_batch.batch_slot, reader.send_buffer, None
        assert batch_slot is not None
        assert send_buffer is not None
        if table.table.leased:
            lease = reader.sent
        schema = None if one.body.known == reader.form.schema_id else spec_of(reader.schema)
        body = Sampled(
            rows=outgoing_batch.rows, schema=schema, slot=batch_slot.slot if shared else None, lease=lease
        )  # fmt: skip
        data = None if shared else send_buffer.frames([batch_slot])[0]
        number, outgoing_batch.batch_slot = reader.sent, None
        table.scheduler.handed_over(reader, outgoing_batch)
        reply = one.message.reply(body, schema=reader.form.schema_id, data=data)
        sent = self._dispatcher.send(one.session, Plane.PULL, reply)
        if not shared:
            send_buffer.sent(number, [batch_slot])
            send_buffer.clear()
        if not sent and lease is not None:
            table.scheduler.settle(reader, lease + 1, (), (lease,))

    def _gave_up(self, table: TableEntry, one: PendingSample, now: float) -> bool:
        """Whether it waits no more: its time is over, or it does not wait at all."""
        count = one.body.batch_size
        at_once = not one.body.waits and table.buffer.limiter is None and not table.rests
        over = one.until is not None and one.until <= now
        if not at_once and not over:
            return False
        if at_once:
            self._refuse(one, refused(table.table.nothing(count)))
        else:
            why = f"{one.body.timeout_s:g} s have passed, and still cannot sample: {self._why_not(table, one)}"
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
        reply = one.message.reply(Error.of(ErrorCode(error.code), str(error), error.expected))
        self._dispatcher.counters.refused(error.code)
        self._dispatcher.send(one.session, Plane.PULL, reply)

    def forget(self, session: Session) -> None:
        """It is gone."""
        for table, waiting in self._asked.items():
            self._asked[table] = [one for one in waiting if one.session is not session]

    def end(self, table: TableEntry, reason: str) -> None:
        """The table was closed: who waits is told."""
        for one in self._asked.pop(table, ()):
            self._refuse(one, Malformed(reason, ErrorCode.UNSUPPORTED))

    def waiting(self, table: TableEntry) -> list[tuple[str, float]]:
        """Who waits and for what, and since when on the server's clock."""
        waiting = self._asked.get(table)
        if not waiting:
            return []
        who = "1 call" if len(waiting) == 1 else f"{len(waiting)} calls"
        text = f"{who} to sample {waiting[0].body.batch_size}: {self._why_not(table, waiting[0])}"
        return [(text, waiting[0].since)]

    def left_s(self, now: float) -> float | None:
        """Seconds until the time of a call that waits is over."""
        moments = [one.until for waiting in self._asked.values() for one in waiting if one.until is not None]
        return max(0.0, min(moments) - now) if moments else None


def _ids(message: Message) -> Any:
    """Of a call by id; copied, since the memory of a message cannot be written to."""
    return np.frombuffer(memoryview(message.data)[: 8 * message.body.count], np.int64).copy()  # type: ignore[union-attr]
