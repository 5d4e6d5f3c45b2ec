"""A table of rollouts of a feeder: each call of `Rollouts` is a message and its answer."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from async_loader.errors import CannotSend, ConfigError, Timeout
from async_loader.feeder.arrays import packed, pieces_of, unpacked
from async_loader.feeder.client.arguments import save_path
from async_loader.feeder.client.call_memory import CallMemory
from async_loader.feeder.client.calls import AnswerDeadline, Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.table import Client
from async_loader.feeder.plain_values import plain_of
from async_loader.feeder.wire import Plane, Rollouts, RolloutsReply
from async_loader.lifecycle import Deadline, seconds
from async_loader.name_hints import stacklevel
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.waiters import WARN_AFTER_S
from async_loader.rollouts.batches import Pieces, memory
from async_loader.rollouts.methods import RolloutMethods
from async_loader.rollouts.requests import Answer, Arrays
from async_loader.rollouts.schema import Array, GroupSchema
from async_loader.rollouts.source import RolloutSource
from async_loader.shm.slot_leases import COPY_BELOW

_BESIDE = 1 << 20
"""Bytes of a call beside its arrays."""
_EXPLAIN_S = 2.0
_COPIED = 64 << 10
"""Bytes of an answer that lies in zmq's memory otherwise."""
_TOGETHER = 1 << 20
"""Bytes of groups of one message: the feeder keeps the memory of all until the last has ended."""
_NONE: Mapping[str, Any] = {}


@dataclass(slots=True, eq=False)
class RemotePending(Call):
    """A call that was sent, or will be.

    Attributes
    ----------
    arrays : mapping | Pieces | None
        What goes with it; ``None``: it was packed.
    session, slot, room : int, int, array
        A slot of this session, and its bytes.
    """

    connection: Any = None
    wait_s: float | None = None
    arrays: Any = None
    session: int = 0
    slot: int | None = None
    room: Array | None = None

    @property
    def over(self) -> bool:
        return bool(self.connection.answered(self))

    @property
    def request(self) -> Rollouts:
        assert isinstance(self.body, Rollouts)
        return self.body

    def take(self) -> Answer:
        """Return the answer, or raise the error. Of a large one, the first part alone."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        body = self.reply.body
        assert isinstance(body, RolloutsReply)
        room = None if self.room is None or body.slot is None else self.room[: body.nbytes]
        return body.answer, unpacked(body.specs, self.reply.data if room is None else room)


class RemotePort:
    """Asks a feeder. After a reconnect calls are sent again: each has its effect once.

    A feeder that has restarted from a save is told first which prompts were trained since.

    Parameters
    ----------
    connection : Connection
    name : str
        Of the table.
    timeout_s : float
        For a call that does not wait for the table.
    memory : CallMemory
    """

    keeps = False

    def __init__(
        self, connection: Connection, name: str, timeout_s: float, memory: CallMemory
    ) -> None:
        self._connection, self._name, self._memory = connection, name, memory
        self._given_up: dict[Any, Array | None] = {}
        self._packing = threading.Lock()  # of what a message is packed from
        self.timeout_s: float | None = timeout_s
        self._grace_s = timeout_s
        self.most_bytes = connection.limits.message_bytes - _BESIDE
        self.sources: weakref.WeakSet[RolloutSource] = weakref.WeakSet()
        self._server = connection.servers
        self._told: list[Call] = []
        self._dropped: deque[tuple[str, Mapping[str, Any]]] = deque()

    def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] = _NONE,
        arrays: Arrays | Pieces = _NONE,
        *,
        wait_s: float | None = None,
        wake: Callable[[], object] | None = None,
        hold_s: float = 0.0,
    ) -> RemotePending:
        """See `Port`."""
        while self._dropped:
            self.tell(*self._dropped.popleft())
        nbytes = pieces_of(arrays).nbytes
        if nbytes > self.most_bytes:
            raise ConfigError(
                f"{name} takes {nbytes:,} bytes, a call {self.most_bytes:,}: give less at a time"
            )
        body = Rollouts(table=self._name, call=name, arguments=dict(arguments), wait_s=wait_s)
        pending = RemotePending(
            body, Plane.PULL, ready=self._ready, done=wake or bool, connection=self._connection,
            wait_s=wait_s, arrays=arrays, due=hold_s and self._connection.clock() + hold_s,
            stays=name == "put",  # it may be that of other groups, too
        )  # fmt: skip
        if name == "draw" or nbytes >= COPY_BELOW:
            self._lease(pending)
        if pending.stays:  # its answer may be read later, or not at all
            self._told = [one for one in self._told if not self._connection.answered(one)]
            self._told.append(pending)
        self._connection.ask(pending)
        return pending

    def extend(self, pending: RemotePending, arguments: Mapping[str, Any], pieces: Pieces) -> bool:
        """See `Port`."""
        known, own = pending.request.arguments, pieces.nbytes
        with self._packing:
            there = pending.arrays
            if there is None or there.keys() != pieces.keys() or known.keys() != arguments.keys():
                return False
            if "has" in known or there.nbytes + own > _TOGETHER:
                return False
            for name, value in arguments.items():
                known[name] += value
            for name, ones in pieces.items():
                there[name] += ones
            if pending.room is None and there.nbytes >= COPY_BELOW:
                self._lease(pending)
        return True

    def _lease(self, pending: RemotePending) -> None:
        leased = self._memory.lease()
        if leased is not None:
            pending.session, pending.slot, pending.room = leased

    def _ready(self, pending: Call) -> bool:
        """Whether a call may be sent: over the socket, if its slot is not of this session. In the
        IO thread.
        """
        connection = self._connection
        assert isinstance(pending, RemotePending)
        with self._packing:
            arrays, pending.arrays = pending.arrays, None
        if arrays is not None:
            specs, data = packed(arrays, pending.room)
            pending.body = replace(pending.request, specs=specs, slot=pending.slot)
            pending.data = data if pending.room is None else None
        body, room = pending.request, pending.room
        elsewhere = pending.session != connection.session.number
        if elsewhere and room is not None and body.slot is not None:
            pending.body = replace(body, slot=None)
            pending.data = room[: body.nbytes].tobytes() if body.nbytes else None
        if connection.servers != self._server and connection.is_open:
            self._server = connection.servers
            keys = [list(key) for one in list(self.sources) for key in one.trained]
            version = max((one.version for one in list(self.sources)), default=0)
            arguments = {"keys": keys, "version": version}
            connection.send_first(
                Call(Rollouts(table=self._name, call="trained", arguments=arguments), Plane.PULL)
            )
        return connection.is_open

    def answer(self, pending: RemotePending, timeout_s: float | None = None) -> Answer:
        """See `Port`."""
        connection, wait_s = self._connection, pending.wait_s
        if pending.due:  # it waits no more for others
            pending.due = 0.0
            connection.wake()
        if wait_s is not None:
            deadline: Deadline = AnswerDeadline(connection, wait_s, self._grace_s)
        else:
            deadline = Deadline(timeout_s)
        try:
            if wait_s is None and timeout_s is None:
                self._warn_if_long(pending)
            reply = connection.answer(pending, deadline)
        finally:
            self._give_up(pending)
        body, call = reply.body, pending.request
        assert isinstance(body, RolloutsReply)
        if call.call == "give_back":  # the feeder has dropped the draw
            self._given_up.pop(call.arguments["part"], None)
        have = 0 if reply.data is None else len(reply.data)
        total = body.total or have
        if total < _COPIED:
            return pending.take()
        whole = memory(total)  # warm, and of this process: zmq's is new, and read-only
        whole[:have] = np.frombuffer(reply.data, np.uint8)
        while have < total:
            arguments = {"key": body.key, "offset": have}
            rest = Call(Rollouts(table=self._name, call="rest", arguments=arguments), Plane.PULL)
            part = connection.call(rest, Deadline(self.timeout_s)).data
            whole[have : have + len(part)] = np.frombuffer(part, np.uint8)
            have += len(part)
        return body.answer, unpacked(body.specs, whole)

    def _warn_if_long(self, pending: RemotePending) -> None:
        """Wait for an answer, for some seconds; then say what it waits for."""
        try:
            self._connection.news.until(lambda: pending.over, Deadline(WARN_AFTER_S), str)
        except Timeout:
            text = f"waiting for {WARN_AFTER_S:g} s for {self.explain(pending)}"
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel())

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Port`."""
        self._told = [one for one in self._told if not self._connection.answered(one)]
        self._told.append(self.ask(name, arguments))

    def drop(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Port`."""
        if self._connection.asking:
            self._dropped.append((name, arguments))
        else:
            self.tell(name, arguments)

    def flush(self, deadline: Deadline) -> None:
        """Wait until what was told has arrived."""
        while self._dropped:
            self.tell(*self._dropped.popleft())
        for call in self._told:
            self._connection.answer(call, deadline)

    def cancel(self, pending: RemotePending) -> None:
        """See `Port`."""
        self._connection.forget_call(pending)
        self._give_up(pending)

    def _give_up(self, pending: RemotePending) -> None:
        """Keep the slot of a call that has no answer: the feeder may still use it."""
        if pending.room is not None and not pending.over and not pending.stays:
            self._given_up[pending.request.arguments.get("part", object())] = pending.room

    def why(self, pending: RemotePending) -> str:
        """See `Port`."""
        return f"rollouts of table {self._name!r} ({self._connection.state()})"

    def explain(self, pending: RemotePending) -> str:
        """See `Port`."""
        try:
            name = {"name": pending.request.call}
            answer, _ = self.answer(self.ask("waits", name), self.timeout_s)
        except Timeout:
            return self.why(pending)
        return f"{answer['why'] or 'its turn'} (of table {self._name!r})"

    def due_s(self) -> float:
        """See `Port`: the feeder looks; a long wait asks it for the reason."""
        return _EXPLAIN_S

    def look(self) -> None:
        """See `Port`."""


class RolloutsClient(RolloutMethods):
    """One table of rollouts of a feeder. Made by `Client.table`.

    Threads: any.
    """

    def __init__(self, client: Client, connection: Connection, name: str, port: RemotePort) -> None:
        self._client, self._connection, self.name = client, connection, name
        self._port = port
        self._sources = port.sources
        self._known: GroupSchema | None = None

    @property
    def group_schema(self) -> GroupSchema:
        """The fields."""
        if self._known is None:
            self._known = GroupSchema.from_plain(self._about()["schema"])
        return self._known

    def _sampler(self, sampler: Sampler) -> Any:
        return plain_of(sampler)

    def __repr__(self) -> str:
        return f"<RolloutsClient {self.name!r} of {self._connection.address}>"

    def __reduce__(self) -> Any:
        address = self._connection.address
        text = f"say connect({address!r}).table({self.name!r}) there"
        raise CannotSend(f"a client's table stays in its process: {text}")

    def save(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> int:
        """Save in the feeder; what this process was given is trained. Return the bytes.

        ``path``: as for other tables of a feeder.
        """
        self.settle()
        there = save_path(path, self._client.owns_feeder)
        return int(self._wait("save", there, timeout_s)["nbytes"])

    def load(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> None:
        """Go on from a `save`, in the feeder."""
        self._wait("load", save_path(path, self._client.owns_feeder), timeout_s)

    def _wait(self, call: str, path: str, timeout_s: float | None) -> dict[str, Any]:
        own = self._port.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)
        answer, _ = self._port.answer(self._port.ask(call, {"path": path}), own)
        return answer

    def close(self) -> None:
        """Nothing to do: the client has the connection."""
