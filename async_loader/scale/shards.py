"""The shards of a cluster, and what finds them: plain values."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from async_loader.errors import ConfigError
from async_loader.feeder import addresses
from async_loader.validation import path_of

MOST_SHARDS = 64
"""Shards of a cluster: a shard's number has to fit into the high bits of an id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One feeder of a cluster.

    Attributes
    ----------
    name : str
        Unique in the cluster, such as "shard-0"; kept by the process that takes its place.
    number : int
        From 0 to 63, unique and fixed for ever: it is in the ids of the shard's rows.
    address : str
        Of the feeder, as `async_loader.connect` takes it.
    host : str
        The name of the shard's machine.
    """

    name: str
    number: int
    address: str
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine, by the machine's name or full name."""
        own = own_host()
        return self.host in ("", own, own.partition(".")[0], socket.getfqdn())


class Finder(Protocol):
    """Knows where the shards of a cluster are. It carries no step and no batch."""

    @property
    def fixed(self) -> bool:
        """Whether shards never come, go or move."""

    def find(self) -> tuple[Sequence[Shard], AbstractSet[int]]:
        """Return the shards by number, and the numbers of removed ones.

        A shard that is in neither stays where it was known to be. Called by one thread.
        """


class StaticShards:
    """A fixed list: shards never move, and restart at their own addresses.

    Parameters
    ----------
    shards : sequence of str or Shard
        Addresses get the names "shard-0", "shard-1" and so on, in this order, which has to be the
        same in all clients: the number of a shard is in the ids of its rows.

    Raises
    ------
    ConfigError
        For a wrong address, name or number.
    """

    fixed = True

    def __init__(self, shards: Sequence[str | Shard]) -> None:
        if isinstance(shards, str) or not isinstance(shards, Sequence):
            raise ConfigError(f"{shards!r} is no list of addresses: give ['tcp://host:port', ...]")
        found = sorted((_shard(i, one) for i, one in enumerate(shards)), key=lambda s: s.number)
        if not 0 < len(found) <= MOST_SHARDS:
            raise ConfigError(
                f"a cluster of {len(found)} shards: give the addresses of 1 to {MOST_SHARDS} "
                "feeders"
            )
        for what in ("name", "number"):
            value, count = Counter(getattr(one, what) for one in found).most_common(1)[0]
            if count > 1:
                raise ConfigError(f"{count} shards have the {what} {value!r}: give each its own")
        self._shards = found

    def find(self) -> tuple[Sequence[Shard], AbstractSet[int]]:
        """See `Finder`."""
        return self._shards, frozenset()


def _shard(number: int, what: str | Shard) -> Shard:
    if isinstance(what, Shard):
        return what
    if not isinstance(what, str):
        raise ConfigError(f"shard {number} is {what!r}: give its address, or a Shard")
    parsed = addresses.parse(what)
    host = own_host() if parsed.loopback else parsed.host
    return Shard(name=f"shard-{number}", number=number, address=what, host=host)


def own_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def keys_in(keys: str | os.PathLike[str] | None) -> Path | None:
    """Return the client's secret file, or a folder with one for each shard: see `key_of`.

    Raises
    ------
    ConfigError
        If it is not there.
    """
    found = None if keys is None else Path(path_of("keys", keys))
    if found is not None and not found.exists():
        raise ConfigError(f"keys={str(keys)!r}: there is no such file or folder")
    return found


def key_of(keys: Path | None, shard: Shard) -> Path | None:
    """Return the client's secret file for a shard.

    Raises
    ------
    ConfigError
        If the folder of keys has none for it.
    """
    if keys is None or not keys.is_dir():
        return keys
    path = keys / f"{shard.name}.secret"
    if not path.is_file():
        raise ConfigError(f"keys={str(keys)!r}: no {path.name} there: one file for each shard")
    return path
