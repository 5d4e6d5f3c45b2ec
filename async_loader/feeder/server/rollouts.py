"""Tables of rollouts in a server: calls in, answers out when they can be given, and saves."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.arrays import packed, pieces_of, unpacked
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.periodic_saves import NEWEST, Folders
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.shared_memory import CallSlots
from async_loader.feeder.server.state import ServerState
from async_loader.feeder.wire import (
    Error,
    ErrorCode,
    Message,
    Plane,
    Rollouts,
    RolloutsReply,
    Type,
    specs_of,
)
from async_loader.replay.samplers import Sampler
from async_loader.rollouts.batches import memory
from async_loader.rollouts.calls import rollout_calls
from async_loader.rollouts.requests import Answer, Request, Requests
from async_loader.rollouts.saving import FILE, read, restore, state_of, write
from async_loader.rollouts.slots import GroupSettings
from async_loader.shm.slot_leases import COPY_BELOW

_log = logging.getLogger("async_loader.feeder")
_BESIDE = 1 << 20
"""Bytes of an answer beside its arrays."""


def sampler_of(plain: Any) -> Sampler | None:
    """Return a sampler from plain values. Raises ConfigError."""
    return None if plain is None else sampler_from(plain)


class RolloutTables:
    """All tables of rollouts of a server.

    An answer that is larger than a message is fetched in parts; what is left is kept for its
    session.

    Parameters
    ----------
    settings : mapping of str to GroupSettings
    server_state : ServerState
    dispatcher : Dispatcher
    jobs : BackgroundJobs
    folders : Folders
    every_s : float, optional
        Between saves. The newest ones are restored here.
    """

    def __init__(
        self,
        settings: Mapping[str, GroupSettings],
        server_state: ServerState,
        dispatcher: Dispatcher,
        jobs: BackgroundJobs,
        folders: Folders,
        every_s: float | None,
    ) -> None:
        clock = self._clock = server_state.clock
        self._server_state, self._dispatcher, self._jobs = server_state, dispatcher, jobs
        self._folders, self._every_s = folders, every_s
        self.tables = {
            name: rollout_calls(one, clock, sampler_of) for name, one in settings.items()
        }
        self._waits: dict[int, list[tuple[Requests, Request]]] = {}
        self._rests: dict[int, dict[int, Any]] = {}
        self._keys = itertools.count(1)
        self._saved: dict[str, Any] = {}
        self._saving: set[str] = set()
        self._save_at = None if every_s is None or not settings else clock() + every_s
        if self._save_at is not None:
            for name, calls in self.tables.items():
                folder = folders.of(name, NEWEST)
                if (folder / FILE).exists():
                    restore(calls, read(folder))
        dispatcher.handlers[Plane.PULL][Type.ROLLOUTS] = self._call

    def table(self, name: str) -> Requests:
        """Return a table by name. Raises Malformed, UNKNOWN_TABLE."""
        found = self.tables.get(name)
        if found is None:
            known = ", ".join(self.tables) or "none"
            raise Malformed(
                f"there is no table of rollouts {name!r} here, there are: {known}",
                ErrorCode.UNKNOWN_TABLE,
            )
        return found

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, session: Session, message: Message, body: Rollouts) -> Message | None:
        calls, arguments = self.table(body.table), body.arguments
        if body.call == "rest":
            return self._rest(session, message, arguments)
        if body.call in ("save", "load"):
            folder = self._folders.of(body.table, arguments.get("path", ""))
            self._save_or_load(session, message, calls, body.call, folder)
            return None
        data = message.data
        if body.slot is not None and body.nbytes:
            data = memory(body.nbytes)
            data[:] = self._slots(session).bytes(body.slot, body.nbytes)
        arrays = unpacked(body.specs, data)
        request = calls.ask(
            session.hello.client, body.call, arguments, arrays, body.wait_s,
            lambda request: self._done(session, message, request),
        )  # fmt: skip
        if not request.over:
            self._waits.setdefault(session.number, []).append((calls, request))
        return None

    def _done(self, session: Session, message: Message, request: Request) -> None:
        waits = self._waits.get(session.number, [])
        waits[:] = [one for one in waits if one[1] is not request]
        if request.error is not None:
            self._over(session, message, request.error)
        elif request.answer is not None:
            self._over(session, message, request.answer)

    def _over(self, session: Session, message: Message, result: Answer | BaseException) -> None:
        if self._server_state.sessions.get(session.number) is not session:
            return
        if isinstance(result, BaseException):
            error = Error.of_malformed(self._dispatcher.refusal(message.type.name, result))
            self._dispatcher.answer(session, Plane.PULL, message.reply(error))
            return
        try:
            answer, arrays = result
            body, pieces, room = message.body, pieces_of(arrays), None
            assert isinstance(body, Rollouts)
            if body.slot is not None and not body.specs and pieces.nbytes >= COPY_BELOW:
                room = self._slots(session).room(body.slot, pieces.nbytes)
            specs, data = packed(arrays, room)
            most = self._server_state.limits.message_bytes - _BESIDE
            reply = message.reply(RolloutsReply(answer=answer, specs=specs), data=data)
            if room is not None:
                reply = message.reply(RolloutsReply(answer=answer, specs=specs, slot=body.slot))
            elif data is not None and len(data) > most:
                key = next(self._keys)
                self._rests.setdefault(session.number, {})[key] = data
                first = RolloutsReply(answer=answer, specs=specs, total=len(data), key=key)
                reply = message.reply(first, data=data[:most])
        except AsyncLoaderError as error:
            self._over(session, message, error)
            return
        self._dispatcher.answer(session, Plane.PULL, reply)

    def _slots(self, session: Session) -> CallSlots:
        if session.call_slots is None:
            raise Malformed("a call names a slot, its client has offered no memory: offer it first")
        return session.call_slots

    def _rest(self, session: Session, message: Message, arguments: Mapping[str, Any]) -> Message:
        """Return the next part of a large answer; the last one is forgotten."""
        key, offset = int(arguments["key"]), int(arguments["offset"])
        kept = self._rests.get(session.number, {})
        if key not in kept:
            raise Malformed(f"there is no answer {key} here: call again", ErrorCode.UNKNOWN_READER)
        data, most = kept[key], self._server_state.limits.message_bytes - _BESIDE
        part = data[offset : offset + most]
        if offset + len(part) >= len(data):
            del kept[key]
        specs = specs_of({"rest": np.frombuffer(part, np.uint8)})
        return message.reply(RolloutsReply(specs=specs, total=len(data), key=key), data=part)

    def leave(self, session: Session) -> None:
        """End a session. Unless its client has begun another one, all that it has goes back."""
        for calls, request in self._waits.pop(session.number, []):
            calls.cancel(request)
        self._rests.pop(session.number, None)
        if not session.replaced:
            for calls in self.tables.values():
                calls.leave(session.hello.client, f"its client {session.end}")

    def publish(self, name: str, version: int) -> None:
        """There are newer weights."""
        for calls in self.tables.values():
            if calls.settings.policy == name:
                calls.publish(version)
                calls.advance()

    # -- time --------------------------------------------------------------------------------------

    def due(self) -> float | None:
        """Return when `step` has something to do."""
        moments = [self._save_at, *(calls.due() for calls in self.tables.values())]
        return min((one for one in moments if one is not None), default=None)

    def step(self, now: float) -> None:
        """Do what is due."""
        for calls in self.tables.values():
            due = calls.due()
            if due is not None and due <= now:
                calls.advance()
        if self._save_at is not None and self._every_s is not None and now >= self._save_at:
            self._save_at = now + self._every_s
            for name in self.tables:
                if name not in self._saving and (state := self._unsaved(name)):
                    self._save(name, state)

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the counts of each table, as `RolloutStats` has them."""
        return {name: calls.status() for name, calls in self.tables.items()}

    # -- saves -------------------------------------------------------------------------------------

    def _unsaved(self, name: str) -> dict[str, Any] | None:
        """Return the state of a table that has changed since its save."""
        state = state_of(self.tables[name])
        return None if state["meta"] == self._saved.get(name) else state

    def _save(self, name: str, state: dict[str, Any]) -> None:
        folder = self._folders.of(name, NEWEST)

        def done(result: Any) -> None:
            self._saving.discard(name)
            if isinstance(result, BaseException):
                _log.error("table %s was not saved: %s", name, result)
            else:
                self._saved[name] = state["meta"]

        self._saving.add(name)
        self._jobs.add(lambda: write(folder, state), done)

    def save_all(self) -> str:
        """Save what has changed, at the end; return which tables were not saved, and why."""
        failed = []
        for name in self.tables if self._every_s is not None else ():
            if state := self._unsaved(name):
                try:
                    write(self._folders.of(name, NEWEST), state)
                except (AsyncLoaderError, OSError) as error:
                    failed.append(f"{name}: {error}")
        return "; ".join(failed)

    def _save_or_load(
        self, session: Session, message: Message, calls: Requests, call: str, folder: Any
    ) -> None:
        """See NOTE [slow work] in dispatch.py: files are written and read beside the loop."""
        state = state_of(calls) if call == "save" else {}

        def work() -> Any:
            if call == "load":
                return read(folder)
            return {"nbytes": write(folder, state), "rows": len(state["meta"]["groups"])}

        def done(result: Any) -> None:
            try:
                if call == "load" and not isinstance(result, BaseException):
                    restore(calls, result)
                    result = {}
            except AsyncLoaderError as error:
                result = error
            self._over(session, message, result if isinstance(result, Exception) else (result, {}))

        self._jobs.add(work, done)
