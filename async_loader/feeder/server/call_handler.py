"""Calls of tables, one message each: about, get, update, delete, prioritize, clear, save, load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import Malformed
from async_loader.feeder.plain_values import sampler_said
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.dispatch import Dispatcher, Handler
from async_loader.feeder.server.periodic_saves import Folders
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    About,
    AboutReply,
    Applied,
    BatchForm,
    ById,
    Clear,
    Control,
    Done,
    Error,
    ErrorCode,
    Get,
    Got,
    Load,
    Message,
    OfTable,
    Plane,
    Save,
    Saved,
    Type,
    check_travels,
    spec_of,
    tensors_of,
)
from async_loader.replay.checkpoint.manifest import limiter_json
from async_loader.replay.views import Sequences
from async_loader.schema import Field, Schema

_Call = Callable[[Session, Message, TableEntry, Any], Message | None]
_MOST_WAITING = 8
"""Of those that wait, which ABOUT_REPLY names."""


class CallHandler:
    """Answers calls of tables.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher
    jobs : BackgroundJobs
    folders : Folders
    loaded : callable
        Called with a table that was loaded.
    """

    def __init__(
        self,
        server_state: ServerState,
        dispatcher: Dispatcher,
        jobs: BackgroundJobs,
        folders: Folders,
        loaded: Callable[[TableEntry], None],
    ) -> None:
        self._server_state, self._dispatcher = server_state, dispatcher
        self._jobs, self._folders, self._loaded = jobs, folders, loaded
        calls: dict[Plane, dict[Type, _Call]] = {
            Plane.CONTROL: {
                Type.ABOUT: self._about,
                Type.CLEAR: self._clear,
                Type.SAVE: self._save,
                Type.LOAD: self._load,
            },
            Plane.PULL: {
                Type.GET: self._get,
                **dict.fromkeys((Type.UPDATE, Type.DELETE, Type.PRIORITIZE), self._change),
            },
        }
        for plane, some in calls.items():
            dispatcher.handlers[plane] |= {type_: self._of(call) for type_, call in some.items()}

    def _of(self, call: _Call) -> Handler:
        """Return what answers a call of a table."""

        def answer(session: Session, message: Message, body: OfTable) -> Message | None:
            return call(session, message, self._server_state.table(body.table), body)

        return answer

    # -- what a table is -------------------------------------------------------------------------

    def _about(self, session: Session, message: Message, table: TableEntry, body: About) -> Message:
        buffer, there, now = table.buffer, table.table, self._server_state.clock()
        stats, schema = table.stats(), buffer.schema
        plain = {one.name: getattr(stats, one.name) for one in fields(stats)}
        plain["waiting"] = [
            (text, max(0.0, now - since)) for text, since in table.waiting()[:_MOST_WAITING]
        ]
        reply = AboutReply(
            schema=None if schema is None else spec_of(schema),
            limiter=limiter_json(buffer.limiter),
            sampler=repr(buffer.sampler)[:512],
            settings=sampler_said(buffer.sampler),
            leased=there.leased,
            stats=plain,
            no_priorities=there.no_priorities,
        )
        return message.reply(reply)

    # -- by id -----------------------------------------------------------------------------------

    def _get(self, session: Session, message: Message, table: TableEntry, body: Get) -> Message:
        view, ids = table.scheduler.view_of(body.view), _ids(message)
        if table.table.schema is not None:  # before they are read: one id may be named many times
            there = table.table.count_there(ids)
            self._check_size(BatchForm.of(table.table.shown(view), max(1, there)), there)
        batch = table.buffer.get(ids, view=view)
        table.scheduler.views.add(view)
        structure = tree.structure_of(batch)
        columns = [np.ascontiguousarray(one) for one in tree.leaves(batch, structure)]
        rows = len(columns[0])
        named = zip(tree.names(structure), columns, strict=True)
        schema = Schema(
            structure,
            tuple(Field(name=name, shape=one.shape[1:], dtype=one.dtype) for name, one in named),
        )
        check_travels(schema, f"rows of table {table.name!r}")
        form = BatchForm.of(schema, max(1, rows))
        self._check_size(form, rows)
        shown = table.buffer.view if view is None else view
        eta = shown.eta if isinstance(shown, Sequences) else None
        reply = Got(rows=rows, schema=spec_of(schema), eta=eta)
        data = form.batch(columns).frames[0] if rows else None
        return message.reply(reply, schema=form.schema_id, data=data)

    def _check_size(self, form: BatchForm, rows: int) -> None:
        most = self._server_state.limits.message_bytes
        if form.nbytes > most:
            text = f"{rows} rows take {form.nbytes} bytes, a message {most}: ask for fewer rows"
            raise Malformed(text, ErrorCode.TOO_LARGE)

    def _change(self, session: Session, message: Message, table: TableEntry, body: ById) -> Message:
        data, buffer = memoryview(message.data)[8 * body.count :], table.buffer
        values: dict[str, Any] = tensors_of(body.specs, data)
        if message.type is Type.UPDATE:
            done = buffer.update(_ids(message), **values)
        elif message.type is Type.DELETE:
            done = buffer.delete(_ids(message))
        else:
            done = buffer.update_priorities(_ids(message), values.get("priority"))
        return message.reply(Applied(done.applied, done.stale))

    def _clear(self, session: Session, message: Message, table: TableEntry, body: Clear) -> Message:
        table.clear()
        return message.reply(Done())

    # -- checkpoints, see NOTE [slow work] ---------------------------------------------------------

    def _save(self, session: Session, message: Message, table: TableEntry, body: Save) -> None:
        folder = self._folders.of(table.name, body.path)

        def work() -> Saved:
            folder.parent.mkdir(parents=True, exist_ok=True)
            report: Any = table.buffer.save(folder)
            return Saved(**{name: getattr(report, name) for name in Saved.__struct_fields__})

        self._jobs.add(work, lambda result: self._over(session, message, result))

    def _load(self, session: Session, message: Message, table: TableEntry, body: Load) -> None:
        folder = self._folders.of(table.name, body.path)

        def over(result: Done | BaseException) -> None:
            table.rests = False
            self._loaded(table)
            if not isinstance(result, BaseException):
                try:
                    self._begin_anew(table)
                except Exception as error:  # it is called by the loop, which goes on
                    result = error
            self._over(session, message, result)

        def work() -> Done:
            table.buffer.load(folder, number=body.number)
            return Done()

        table.rests = True  # first: what it had is noted before it is loaded
        try:
            self._jobs.add(work, over)
        except BaseException:
            table.rests = False
            raise

    def _begin_anew(self, table: TableEntry) -> None:
        """Forget rows and streams of a table that was loaded, and close its readers. Learners may
        have had rows of a queue since they were saved.
        """
        table.begin_anew()
        table.table.note_restored()
        for session in self._server_state.sessions:
            for number, reader in list(session.readers.items()):
                if reader.table == table.name:
                    table.scheduler.close(reader)
                    session.close_reader(number)
                    text = f"table {table.name!r} was loaded: open its readers again"
                    error = Malformed(text, ErrorCode.UNKNOWN_READER)
                    self._dispatcher.error(session, Plane.PULL, number, 0, error)

    def _over(
        self, session: Session, message: Message, result: Control | Done | BaseException
    ) -> None:
        if self._server_state.sessions.get(session.number) is not session:
            return
        if isinstance(result, BaseException):
            result = Error.of_malformed(self._dispatcher.refusal(message.type.name, result))
        self._dispatcher.answer(session, Plane.CONTROL, message.reply(result))


def _ids(message: Message) -> Any:
    """Return the ids of a call, copied: the memory of a message is read-only."""
    assert isinstance(message.body, ById)
    return np.frombuffer(memoryview(message.data)[: 8 * message.body.count], np.int64).copy()
