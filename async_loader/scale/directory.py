"""What a client asks for the shards of its cluster, and the directory of a fixed list."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from async_loader.errors import Closed, ConfigError
from async_loader.lifecycle import seconds
from async_loader.scale.hosts import host_of
from async_loader.scale.shard_map import Shard, ShardMap, check_shards
from async_loader.validation import path_of


@runtime_checkable
class Directory(Protocol):
    """Knows the shards of a cluster. It carries no step and no batch.

    Threads: any; `shard_map` may wait in one while others call.

    Attributes
    ----------
    keys : path | None
        The client's secret file, which fits all shards, or a folder with one for each shard,
        ``SHARD.secret``: see `key_of`. ``None``: the shards have no keys.
    """

    @property
    def keys(self) -> Path | None: ...

    def shard_map(self, newer_than: int = -1, timeout_s: float = 0.0) -> ShardMap:
        """Return the map: at once if its version is above ``newer_than``.

        Else wait up to ``timeout_s`` for a newer one, and return the one that is there by then.

        Raises
        ------
        Timeout, Broken
            The directory cannot be reached, and no map was ever had. (A directory that has had one
            returns it again.)
        Closed
            After `close`, and to a call that waits when it is closed.
        """

    def report_lost(self, name: str, incarnation: int) -> None:
        """Tell that a client cannot reach this shard. It returns at once, and raises nothing.

        An older incarnation than the map's is ignored.
        """

    def close(self) -> None:
        """End; waiting calls raise Closed. May be called again."""


def key_of(directory: Directory, shard: Shard) -> Path | None:
    """Return the client's secret file for a shard.

    Raises
    ------
    ConfigError
        If the folder of keys has none for it.
    """
    keys = directory.keys
    if keys is None or not keys.is_dir():
        return keys
    path = keys / f"{shard.name}.secret"
    if not path.is_file():
        raise ConfigError(f"keys={str(keys)!r}: no {path.name} there: one file for each shard")
    return path


class StaticDirectory:
    """The directory of a fixed list: shards never move, and restart at their own addresses.

    Parameters
    ----------
    shards : sequence of str or Shard
        Addresses get the names "shard-0", "shard-1" and so on, in this order, which has to be the
        same in all clients: the number of a shard is in the ids of its rows.
    keys : path, optional
        See `Directory.keys`.

    Raises
    ------
    ConfigError
        For a wrong address, name or number, and a path of keys that is not there.
    """

    def __init__(
        self, shards: Sequence[str | Shard], *, keys: str | os.PathLike[str] | None = None
    ) -> None:
        if isinstance(shards, str) or not isinstance(shards, Sequence):
            raise ConfigError(f"{shards!r} is no list of addresses: give ['tcp://host:port', ...]")
        self._map = ShardMap(
            version=0, shards=check_shards(_shard(i, one) for i, one in enumerate(shards))
        )
        self._keys = None if keys is None else Path(path_of("keys", keys))
        if self._keys is not None and not self._keys.exists():
            raise ConfigError(f"keys={str(keys)!r}: there is no such file or folder")
        self._closed = threading.Event()

    @property
    def keys(self) -> Path | None:
        """See `Directory`."""
        return self._keys

    def shard_map(self, newer_than: int = -1, timeout_s: float = 0.0) -> ShardMap:
        """Return the map, which never changes; see `Directory.shard_map`."""
        if newer_than >= self._map.version:
            self._closed.wait(seconds("timeout_s", timeout_s))
        if self._closed.is_set():
            raise Closed("this directory of a cluster is closed")
        return self._map

    def report_lost(self, name: str, incarnation: int) -> None:
        """Do nothing: the shard is expected back at its own address."""

    def close(self) -> None:
        """See `Directory`."""
        self._closed.set()


def _shard(number: int, what: str | Shard) -> Shard:
    if isinstance(what, Shard):
        return what
    if not isinstance(what, str):
        raise ConfigError(f"shard {number} is {what!r}: give its address, or a Shard")
    return Shard(
        name=f"shard-{number}",
        number=number,
        address=what,
        host=host_of(what),
        incarnation=0,
        state="serving",
    )
