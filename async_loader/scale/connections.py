"""The connections to all shards of a cluster, wherever these are."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from async_loader.errors import AsyncLoaderError, Broken, Timeout
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.lifecycle import Deadline, EndFlag, EventFd, join, readable
from async_loader.scale.shards import MOST_SHARDS, Finder, Shard, key_of


class Bells:
    """Rung when a shard is lost, reached, added or removed. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: list[EventFd] = []

    def add(self, bell: EventFd) -> None:
        """Ring it from here on."""
        with self._lock:
            self._bells.append(bell)

    def remove(self, bell: EventFd) -> None:
        """Ring it no more: from here on it may be closed."""
        with self._lock:
            self._bells = [one for one in self._bells if one is not bell]

    def ring(self) -> None:
        """Ring all."""
        with self._lock:
            for bell in self._bells:
                bell.ring()


class ShardPlace:
    """Where a shard is.

    Parameters
    ----------
    shard : Shard
        Replaced when it has moved.
    bells : Bells
    look : callable
        Called when the shard is lost: it may be somewhere else.
    """

    def __init__(self, shard: Shard, bells: Bells, look: Callable[[], None]) -> None:
        self.shard, self._bells, self._look = shard, bells, look

    def changed(self, reached: bool) -> None:
        """See `IoThread`."""
        if not reached:
            self._look()
        self._bells.ring()


class ShardConnection:
    """One shard, and this process's client of it. Threads: any.

    Parameters
    ----------
    place : ShardPlace
    key : path | None
        The client's secret file.
    name : str
        Of the client, for the shard's status.
    identity : bytes
        The same for all shards of a client, so that the weights that it publishes are one run.
    timeout_s : float

    Attributes
    ----------
    client : Client
        It reconnects for as long as it takes, wherever the shard is by then.
    lost_bytes : int
        Of rows that were not acknowledged when the shard was removed.
    removed : bool
        The shard is no part of the cluster any more.
    """

    def __init__(
        self, place: ShardPlace, key: Path | None, name: str, identity: bytes, timeout_s: float
    ) -> None:
        self._place, self.lost_bytes, self.removed = place, 0, False
        keys = None if key is None else load_client_keys(key)
        self.connection = Connection(
            place.shard.address, None, keys=keys, name=name, client=identity, changed=place.changed
        )
        self.client = Client(self.connection, timeout_s)
        self._tables: dict[str, TableClient] = {}

    @property
    def shard(self) -> Shard:
        """The shard as it was found last."""
        return self._place.shard

    @property
    def name(self) -> str:
        """Of the shard."""
        return self._place.shard.name

    @property
    def number(self) -> int:
        """Of the shard: the high bits of its ids."""
        return self._place.shard.number

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.connection.is_open

    @property
    def answers(self) -> bool:
        """Whether there is a session, and the shard was heard a moment ago."""
        return self.connection.answers_s > 0.0

    def table(self, name: str) -> TableClient:
        """Return a table of this shard; the same for each call, which knows its schema."""
        found = self._tables.get(name)
        return self._tables.setdefault(name, self.client.table(name)) if found is None else found

    def follow(self, shard: Shard) -> None:
        """Go where the shard is now."""
        self._place.shard = shard
        self.connection.move(shard.address)

    def remove(self) -> None:
        """End with Broken: the shard is no part of the cluster any more."""
        self.removed = True
        self.lost_bytes = self.client.stats().bytes_kept
        text = f"{self.name} was removed from the cluster: open another writer or source"
        self.connection.give_up(lambda: Broken(text))


_log = logging.getLogger("async_loader.scale")
LOOK_S, _AGAIN_S = 10.0, 1.0
"""How often to look for new shards; and while one cannot be reached."""
_OTHERS_S = 2.0
"""How long the first connection waits for the others."""


class Connections:
    """Follows the shards that a finder knows. Threads: any.

    Parameters
    ----------
    finder : Finder
        Closed with this.
    keys : path | None
    name : str
        Of the client, for the shards' status.
    timeout_s : float

    Attributes
    ----------
    bells : Bells
        Rung when a shard is lost, reached, added or removed.
    pool : ThreadPoolExecutor
        For calls of several shards at the same time.

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
        self.bells, self._lock = Bells(), threading.Lock()
        self.pool = ThreadPoolExecutor(MOST_SHARDS, "async-loader-cluster")
        self._removed: list[ShardConnection] = []
        self._all: tuple[ShardConnection, ...] = ()
        self._left_out: dict[str, Exception] = {}  # by name: and why
        self._end, self._wake = EndFlag(), EventFd()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._end, self._wake),
            name="async-loader-cluster", daemon=True,
        )  # fmt: skip
        self._dropped = weakref.finalize(self, self._end.set)
        try:
            self.look()
            for error in self._left_out.values():
                raise error
            if not finder.fixed:
                self._thread.start()
            self._wait_open(Deadline(timeout_s))
        except BaseException:
            self.close(timeout_s)
            raise

    @property
    def all(self) -> tuple[ShardConnection, ...]:
        """Those of the shards that are there, by number."""
        return self._all

    @property
    def reached(self) -> list[ShardConnection]:
        """Those of them that have a session."""
        return [one for one in self._all if one.is_open]

    def find(self, number: int) -> ShardConnection | None:
        """Return the shard of this number; ``None`` if it is unknown."""
        return next((one for one in self._all if one.number == number), None)

    def everything(self) -> tuple[ShardConnection, ...]:
        """Those that are there, and those that were removed."""
        return (*self._all, *self._removed)

    def nothing(self, what: str) -> Timeout:
        """Return the error of a call for which no shard can be reached."""
        names = ", ".join(one.name for one in self._all)
        return Timeout(f"{what}: none of {names} can be reached: the call may be made again")

    def close(self, timeout_s: float) -> None:
        """Close the finder and all clients. Raises what the first client raised."""
        self._end.set()
        join(self._thread, timeout_s)
        self._finder.close()
        deadline, first = Deadline(timeout_s), None
        for one in self.everything():
            try:
                one.client.close(deadline.left_or_inf())
            except AsyncLoaderError as error:
                if one.lost_bytes or one in self._all:
                    first = first or error
        self.pool.shutdown()
        if first is not None:
            raise first

    def look(self) -> None:
        """Connect to new shards, follow others, and give up removed ones."""
        shards, removed = self._finder.find()
        with self._lock:
            there = {one.number: one for one in self._all}
            for number in removed & there.keys():
                gone = there.pop(number)
                self._removed.append(gone)
                gone.remove()
            left_out: dict[str, Exception] = {}
            for shard in shards:
                try:
                    if shard.number in there:
                        there[shard.number].follow(shard)
                    elif shard.number not in removed and not self._end.is_set():
                        there[shard.number] = self._connect(shard)
                except Exception as error:  # such as no key for it yet: the others are followed
                    # without its frames, which hold these connections
                    left_out[shard.name] = error.with_traceback(None)
            self._all = tuple(there[number] for number in sorted(there))
            new, self._left_out = left_out.keys() - self._left_out.keys(), left_out
        self.bells.ring()
        for name in new:
            _log.warning("%s is left out, and tried again: %s", name, str(left_out[name]))

    def _connect(self, shard: Shard) -> ShardConnection:
        place = ShardPlace(shard, self.bells, self._wake.ring)
        key = key_of(self._keys, shard)
        return ShardConnection(place, key, self._name, self._identity, self._timeout_s)

    @property
    def look_s(self) -> float:
        """Seconds before the next look."""
        complete = self._all and all(one.is_open for one in self._all) and not self._left_out
        return LOOK_S if complete else _AGAIN_S

    def _wait_open(self, deadline: Deadline) -> None:
        """Wait for one shard as long as it takes, and a moment for the others.

        Shards of a cluster that starts may not be there at first.
        """
        bell, until, some = EventFd(), deadline, False
        self.bells.add(bell)
        try:
            while not (until.expired or (some and len(self.reached) == len(self._all))):
                bell.clear()
                for one in self._all:
                    with contextlib.suppress(Timeout):
                        one.connection.wait_open(Deadline(0.0))  # a refusal ends all
                if self.reached and not some:
                    some, until = True, Deadline(min(_OTHERS_S, deadline.left_or_inf()))
                if not some or len(self.reached) < len(self._all):
                    readable([bell.fileno()], until.left())
        finally:
            self.bells.remove(bell)
            bell.close()
        if self.reached or some:
            return
        if not self._all:
            raise Timeout("the cluster has no shard yet: wait longer, or see `cluster status`")
        why = self._all[0].connection.no_answer("HELLO")
        raise Timeout(f"no shard of {len(self._all)} answered: {why}")


def _watch(connections: weakref.ReferenceType[Connections], end: EndFlag, wake: EventFd) -> None:
    """Look for shards until the end, or until the connections are gone."""
    wait_s = _AGAIN_S
    while end.fileno() not in readable([end.fileno(), wake.fileno()], wait_s):
        wake.clear()
        owner = connections()
        if owner is None:
            return
        wait_s = owner.look_s
        try:
            owner.look()
        except Exception:  # else no shard that moves would be followed
            _log.exception("the shards of the cluster could not be found, and are looked for again")
        del owner
        readable([end.fileno()], 0.1)  # of several shards that are lost at once
