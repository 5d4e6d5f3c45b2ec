"""The connections to all shards of a cluster, as the newest map has them."""

from __future__ import annotations

import secrets
import threading
import weakref

from async_loader.errors import AsyncLoaderError, Closed, ConfigError, Timeout, Unsupported
from async_loader.lifecycle import Deadline, EndFlag, EventFd, join, readable
from async_loader.scale.directory import Directory, key_of
from async_loader.scale.place import ShardPlace
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_map import ShardMap

_MAP_S = 60.0
"""How long one question for a newer map may take."""
_AGAIN_S = 1.0
_OTHERS_S = 2.0
"""How long the first connection waits for the others."""


class Connections:
    """Follows a directory. Threads: any.

    Parameters
    ----------
    directory : Directory
        Closed with this.
    name : str
        Of the client, for the shards' status.
    timeout_s : float

    Raises
    ------
    Timeout
        No shard answered.
    ConfigError, Unsupported
        As `async_loader.connect`.
    """

    def __init__(self, directory: Directory, name: str, timeout_s: float) -> None:
        self._directory, self._name, self._timeout_s = directory, name, timeout_s
        self._identity = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._by_name: dict[str, ShardConnection] = {}
        self._removed: list[ShardConnection] = []
        self._bells: list[EventFd] = []
        self._all: tuple[ShardConnection, ...] = ()
        self._end = EndFlag()
        self.version = -1
        self._thread: threading.Thread | None = None
        try:
            self._apply(directory.shard_map(timeout_s=timeout_s))
            self._wait_open(Deadline(timeout_s))
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), directory, self._end),
                name="async-loader-cluster",
                daemon=True,
            )
            self._thread.start()
        except BaseException:
            self.close(timeout_s)
            raise
        self._dropped = weakref.finalize(self, directory.close)

    @property
    def all(self) -> tuple[ShardConnection, ...]:
        """Those of the newest map, by number."""
        return self._all

    def find(self, number: int) -> ShardConnection | None:
        """Return the shard of this number; ``None`` if it is unknown."""
        return next((one for one in self._all if one.number == number), None)

    def everything(self) -> tuple[ShardConnection, ...]:
        """Those of the newest map, and those that were removed."""
        with self._lock:
            return (*self._all, *self._removed)

    def listen(self, bell: EventFd) -> None:
        """Ring a bell when a shard is lost, reached, added or removed."""
        with self._lock:
            self._bells.append(bell)
            for one in self._all:
                one.place.listen(bell)

    def unlisten(self, bell: EventFd) -> None:
        """Ring it no more: from here on it may be closed."""
        with self._lock:
            self._bells = [one for one in self._bells if one is not bell]
            for one in (*self._all, *self._removed):
                one.place.unlisten(bell)

    def close(self, timeout_s: float) -> None:
        """Close the directory and all clients. Raises what the first client raised."""
        self._end.set()
        self._directory.close()
        if self._thread is not None:
            join(self._thread, timeout_s)
        deadline, first = Deadline(timeout_s), None
        for one in self.everything():
            try:
                one.client.close(deadline.left_or_inf())
            except AsyncLoaderError as error:
                if one.lost_bytes or one in self._all:
                    first = first or error
        if first is not None:
            raise first

    def _apply(self, found: ShardMap) -> None:
        """Connect to new shards, tell others where they are, and give up removed ones."""
        with self._lock:
            if found.version <= self.version or self._end.is_set():
                return
            self.version = found.version
            names = {shard.name for shard in found.shards}
            for shard in found.shards:
                known = self._by_name.get(shard.name)
                if known is not None:
                    known.follow(shard)
                    continue
                place = ShardPlace(shard, self._directory.report_lost)
                for bell in self._bells:
                    place.listen(bell)
                key = key_of(self._directory, shard)
                self._by_name[shard.name] = ShardConnection(
                    place, key, self._name, self._identity, self._timeout_s
                )
            for name in self._by_name.keys() - names:
                gone = self._by_name.pop(name)
                gone.remove()
                self._removed.append(gone)
            self._all = tuple(sorted(self._by_name.values(), key=lambda one: one.number))
            for bell in self._bells:
                bell.ring()

    def _wait_open(self, deadline: Deadline) -> None:
        """Wait for one shard as long as it takes, and a moment for the others."""
        late: list[Timeout] = []
        for one in self._all:
            some = any(other.is_open for other in self._all)
            left = deadline.left()
            limit = min(_OTHERS_S, _OTHERS_S if left is None else left) if some else left
            try:
                one.wait_open(Deadline(0.0 if one.shard.state == "lost" else limit))
            except (ConfigError, Unsupported):
                raise
            except Timeout as error:
                late.append(error)
        if not any(one.is_open for one in self._all):
            raise Timeout(f"no shard of {len(self._all)} answered: {late[0]}")


def _watch(
    connections: weakref.ReferenceType[Connections], directory: Directory, end: EndFlag
) -> None:
    """Follow the directory until it is closed, or the connections are gone."""
    while not end.is_set():
        owner = connections()
        if owner is None:
            return
        version = owner.version
        del owner
        try:
            found = directory.shard_map(newer_than=version, timeout_s=_MAP_S)
        except Closed:
            return
        except AsyncLoaderError:  # it has no answer now: the last map holds
            readable([end.fileno()], _AGAIN_S)
            continue
        owner = connections()
        if owner is not None:
            owner._apply(found)
        del owner
