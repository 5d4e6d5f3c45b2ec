"""The connections to all shards of a cluster, wherever these are, and calls of several of them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from async_loader.errors import AsyncLoaderError, Broken, Closed, Timeout
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.lifecycle import Deadline, EndFlag, join, readable
from async_loader.scale.shards import MOST_SHARDS, Finder, Shard, key_of

R = TypeVar("R")
_log = logging.getLogger("async_loader.scale")
_LOOK_S, _AGAIN_S = 10.0, 1.0
"""How often to look for new shards; and while one cannot be reached."""
_OTHERS_S = 2.0
"""How long the first connection waits for the others."""
_OPENS_S = 0.01


class ShardConnection:
    """One shard, and this process's client of it. Threads: any.

    Parameters
    ----------
    shard : Shard
    key : path | None
        The client's secret file.
    name : str
        Of the client, for the shard's status.
    identity : bytes
        The same for all shards of a client, so that the weights that it publishes are one run.
    timeout_s : float

    Attributes
    ----------
    shard : Shard
        As it was found last.
    client : Client
        It reconnects for as long as it takes, wherever the shard is by then.
    removed : bool
        The shard is no part of the cluster any more.
    """

    def __init__(
        self, shard: Shard, key: Path | None, name: str, identity: bytes, timeout_s: float
    ) -> None:
        self.shard, self.name, self.number, self.removed = shard, shard.name, shard.number, False
        keys = None if key is None else load_client_keys(key)
        self.connection = Connection(shard.address, None, keys=keys, name=name, client=identity)
        self.client = Client(self.connection, timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.connection.is_open

    @property
    def answers(self) -> bool:
        """Whether there is a session, and the shard was heard a moment ago."""
        return self.connection.answers_s > 0.0

    def table(self, name: str) -> TableClient:
        """Return a table of this shard."""
        table: TableClient = self.client.table(name)
        return table

    def remove(self) -> None:
        """End with Broken: the shard is no part of the cluster any more."""
        self.removed = True
        text = f"{self.name} was removed from the cluster: open another writer or source"
        self.connection.give_up(lambda: Broken(text))


class ShardDeadline(Deadline):
    """Passes with another deadline, or when the shard no longer answers.

    So a shard that is killed or stopped during a call delays the call by a few heartbeats at most.

    Parameters
    ----------
    shard : ShardConnection
    deadline : Deadline
    """

    __slots__ = ("_deadline", "_shard")

    def __init__(self, shard: ShardConnection, deadline: Deadline) -> None:
        super().__init__(None)
        self._shard, self._deadline = shard, deadline

    def left(self) -> float | None:
        """See `Deadline.left`. A sign of life makes it longer again."""
        return min(self._deadline.left_or_inf(), self._shard.connection.answers_s)

    @property
    def expired(self) -> bool:
        return self.left() == 0.0


class Connections:
    """Follows the shards that a finder knows. Threads: any.

    Parameters
    ----------
    finder : Finder
    keys : path | None
    name : str
        Of the client, for the shards' status.
    timeout_s : float

    Attributes
    ----------
    all : tuple of ShardConnection
        Those of the shards that are there, by number.

    Raises
    ------
    Timeout
        No shard answered, or the cluster has no shard yet.
    ConfigError, Unsupported
        As `async_loader.connect`.
    """

    def __init__(self, finder: Finder, keys: Path | None, name: str, timeout_s: float) -> None:
        self._finder, self._keys, self._name, self._timeout_s = finder, keys, name, timeout_s
        self._identity = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(MOST_SHARDS, "async-loader-cluster")
        self.all: tuple[ShardConnection, ...] = ()
        self._end = EndFlag()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._end),
            name="async-loader-cluster", daemon=True,
        )  # fmt: skip
        self._dropped = weakref.finalize(self, self._end.set)
        try:
            for error in self.look().values():
                raise error
            if not finder.fixed:
                self._thread.start()
            self._wait_open(Deadline(timeout_s))
        except BaseException:
            self.close(timeout_s)
            raise

    @property
    def reached(self) -> list[ShardConnection]:
        """Those of the shards that have a session."""
        return [one for one in self.all if one.is_open]

    def nothing(self, what: str) -> Timeout:
        """Return the error of a call for which no shard can be reached."""
        names = ", ".join(one.name for one in self.all)
        return Timeout(f"{what}: none of {names} can be reached: the call may be made again")

    def ask(
        self,
        shards: Sequence[ShardConnection],
        call: Callable[[ShardConnection, Deadline], R],
        deadline: Deadline,
    ) -> tuple[dict[str, R], dict[str, AsyncLoaderError]]:
        """Call each shard, in threads; return the answers and the errors of all, by name.

        ``call`` is given the shard and the deadline of its call.
        """
        if self._end.is_set():
            raise Closed("this client of a cluster is closed")
        for one in shards:
            one.connection.check_fork()  # in a fork there are no threads
        asked = [
            (one.name, self._pool.submit(call, one, ShardDeadline(one, deadline))) for one in shards
        ]
        found: dict[str, R] = {}
        failed: dict[str, AsyncLoaderError] = {}
        for name, future in asked:
            try:
                found[name] = future.result()
            except AsyncLoaderError as error:
                failed[name] = error
        return found, failed

    def close(self, timeout_s: float) -> None:
        """Close all clients. Raises what the first one raised."""
        self._end.set()
        join(self._thread, timeout_s)
        deadline, first = Deadline(timeout_s), None
        for one in self.all:
            try:
                one.client.close(deadline.left_or_inf())
            except AsyncLoaderError as error:
                first = first or error
        self._pool.shutdown()
        if first is not None:
            raise first

    def look(self) -> dict[str, Exception]:
        """Connect to new shards, follow others, and give up removed ones.

        Returns why shards were left out, by name: such as no key for one yet.
        """
        shards, removed = self._finder.find()
        left_out: dict[str, Exception] = {}
        with self._lock:
            there = {one.number: one for one in self.all}
            for number in removed & there.keys():
                there.pop(number).remove()
            for shard in shards:
                try:
                    if shard.number in there:
                        there[shard.number].shard = shard
                        there[shard.number].connection.move(shard.address)
                    elif shard.number not in removed and not self._end.is_set():
                        there[shard.number] = ShardConnection(
                            shard, key_of(self._keys, shard), self._name, self._identity,
                            self._timeout_s,
                        )  # fmt: skip
                except Exception as error:
                    # without its frames, which hold these connections
                    left_out[shard.name] = error.with_traceback(None)
            self.all = tuple(there[number] for number in sorted(there))
        return left_out

    def _wait_open(self, deadline: Deadline) -> None:
        """Wait for one shard as long as it takes, and a moment for the others.

        Shards of a cluster that starts may not be there at first.
        """
        until, some = deadline, False
        while not until.expired:
            for one in self.all:
                with contextlib.suppress(Timeout):
                    one.connection.wait_open(Deadline(0.0))  # a refusal ends all
            if self.reached and not some:
                some, until = True, Deadline(min(_OTHERS_S, deadline.left_or_inf()))
            if some and len(self.reached) == len(self.all):
                return
            readable([], _OPENS_S)
        if some:
            return
        if not self.all:
            raise Timeout("the cluster has no shard yet: wait longer, or see `cluster status`")
        why = self.all[0].connection.no_answer("HELLO")
        raise Timeout(f"no shard of {len(self.all)} answered: {why}")


def _watch(connections: weakref.ReferenceType[Connections], end: EndFlag) -> None:
    """Look for shards until the end, or until the connections are gone."""
    left_out: dict[str, Exception] = {}
    due = Deadline(_LOOK_S)
    while not readable([end.fileno()], _AGAIN_S):
        owner = connections()
        if owner is None:
            return
        if due.expired or left_out or len(owner.reached) < len(owner.all) or not owner.all:
            before, due = left_out, Deadline(_LOOK_S)
            try:
                left_out = owner.look()
            except Exception:  # else no shard that moves would be followed
                _log.exception("the shards of the cluster could not be found: they are looked for "
                               "again")  # fmt: skip
            for name in left_out.keys() - before.keys():
                _log.warning("%s is left out, and tried again: %s", name, str(left_out[name]))
        del owner
