"""The connections to all shards of a cluster, as the newest map has them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import weakref

from async_loader.errors import AsyncLoaderError, Closed, Timeout
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, EndFlag, EventFd, join, readable
from async_loader.scale.directory import Directory, key_of
from async_loader.scale.place import ShardPlace
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_map import Shard, ShardMap

_log = logging.getLogger("async_loader.scale")
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
        No shard answered, or the map is empty.
    ConfigError, Unsupported
        As `async_loader.connect`.
    """

    def __init__(self, directory: Directory, name: str, timeout_s: float) -> None:
        self._directory, self._name, self._timeout_s = directory, name, timeout_s
        self._identity = secrets.token_bytes(16)
        self._lock = held_lock(while_waiting=True)
        self._by_name: dict[str, ShardConnection] = {}
        self._removed: list[ShardConnection] = []
        self._bells: list[EventFd] = []
        self._all: tuple[ShardConnection, ...] = ()
        self._end = EndFlag()
        self.version = -1
        self._left_out: dict[str, Exception] = {}  # of the newest map, by name: and why
        self._thread: threading.Thread | None = None
        try:
            deadline = Deadline(timeout_s)
            if not self._apply(directory.shard_map(timeout_s=timeout_s)):
                raise next(iter(self._left_out.values()))
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), directory, self._end),
                name="async-loader-cluster",
                daemon=True,
            )
            self._thread.start()
            self._wait_open(deadline)
        except BaseException:
            self.close(timeout_s)
            raise
        self._dropped = weakref.finalize(self, directory.close)

    @property
    def complete(self) -> bool:
        """Whether there is a connection for each shard of the newest map."""
        return not self._left_out

    @property
    def all(self) -> tuple[ShardConnection, ...]:
        """Those of the newest map, by number."""
        return self._all

    def find(self, number: int) -> ShardConnection | None:
        """Return the shard of this number; ``None`` if it is unknown."""
        return next((one for one in self._all if one.number == number), None)

    def everything(self) -> tuple[ShardConnection, ...]:
        """Those of the newest map, and those that were removed."""
        with unheld(self._lock):
            return (*self._all, *self._removed)

    def listen(self, bell: EventFd) -> None:
        """Ring a bell when a shard is lost, reached, added or removed."""
        with unheld(self._lock):
            self._bells.append(bell)
            for one in self._all:
                one.place.listen(bell)

    def unlisten(self, bell: EventFd) -> None:
        """Ring it no more: from here on it may be closed."""
        with unheld(self._lock):
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

    def _apply(self, found: ShardMap) -> bool:
        """Connect to new shards, tell others where they are, and give up removed ones.

        Return False if a shard has to be left out for now: the same map may be applied again.
        """
        with unheld(self._lock):
            if self._end.is_set() or (found.version <= self.version and not self._left_out):
                return True
            names, left_out = {shard.name for shard in found.shards}, {}
            for shard in found.shards:
                known = self._by_name.get(shard.name)
                try:
                    if known is not None:
                        known.follow(shard)
                    else:
                        self._by_name[shard.name] = self._connect(shard)
                except Exception as error:  # such as no key for it yet: the others are followed
                    # without its frames, which hold these connections
                    left_out[shard.name] = error.with_traceback(None)
            for name in self._by_name.keys() - names:
                gone = self._by_name.pop(name)
                gone.remove()
                self._removed.append(gone)
            self._all = tuple(sorted(self._by_name.values(), key=lambda one: one.number))
            new = [name for name in left_out if name not in self._left_out]
            self._left_out = left_out
            for bell in self._bells:
                bell.ring()
            self.version = max(self.version, found.version)  # last: what failed is seen again
        for name in new:
            _log.warning("%s is left out, and tried again: %s", name, str(left_out[name]))
        return not left_out

    def _connect(self, shard: Shard) -> ShardConnection:
        key = key_of(self._directory, shard)
        place = ShardPlace(shard, self._directory.report_lost)
        made = ShardConnection(place, key, self._name, self._identity, self._timeout_s)
        for bell in self._bells:
            place.listen(bell)
        return made

    def _wait_open(self, deadline: Deadline) -> None:
        """Wait for one shard as long as it takes, and a moment for the others.

        Maps that come meanwhile are followed: the shards of a cluster that starts may not be in the
        first one, and those that are lost come back in a later one.
        """
        bell = EventFd()
        self.listen(bell)
        try:
            until = deadline
            while True:
                bell.clear()
                there = self._all
                for one in there:
                    with contextlib.suppress(Timeout):
                        one.wait_open(Deadline(0.0))  # a refusal ends all
                some = any(one.is_open for one in there)
                if some and until is deadline:
                    until = Deadline(min(_OTHERS_S, deadline.left_or_inf()))
                if some and all(one.is_open or one.shard.state == "lost" for one in there):
                    return
                if until.expired:
                    break
                readable([bell.fileno()], until.left())
        finally:
            self.unlisten(bell)
            bell.close()
        if some:
            return
        if not self._all:
            raise Timeout("the cluster has no shard yet: wait longer, or see `cluster status`")
        raise Timeout(
            f"no shard of {len(there)} answered: {there[0].connection.no_answer('HELLO')}"
        )


def _watch(
    connections: weakref.ReferenceType[Connections], directory: Directory, end: EndFlag
) -> None:
    """Follow the directory until it is closed, or the connections are gone."""
    while not end.is_set():
        owner = connections()
        if owner is None:
            return
        version, wait_s = owner.version, _MAP_S if owner.complete else _AGAIN_S
        del owner
        try:
            found = directory.shard_map(newer_than=version, timeout_s=wait_s)
            owner = connections()
            if owner is not None:
                owner._apply(found)
        except Closed:
            return
        except AsyncLoaderError:  # it has no answer now: the last map holds
            readable([end.fileno()], _AGAIN_S)
        except Exception:  # else no later map would be followed
            _log.exception("a map of the cluster could not be applied, and is tried again")
            readable([end.fileno()], _AGAIN_S)
        finally:
            owner = None
