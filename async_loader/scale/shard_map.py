"""The shards of a cluster, and the map of all of them: plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from async_loader.errors import ConfigError

MOST_SHARDS = 64
"""Shards of a cluster: a shard's number has to fit into the high bits of an id."""

ShardState: TypeAlias = Literal["serving", "draining", "lost"]
"""Takes rows and gives batches; gives batches and takes no new writer; cannot be reached."""


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
        The name of the shard's machine. See `async_loader.scale.hosts`.
    incarnation : int
        Grows each time that the shard's process starts anew.
    state : "serving" | "draining" | "lost"
    """

    name: str
    number: int
    address: str
    host: str
    incarnation: int
    state: ShardState


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMap:
    """All shards of a cluster at one time.

    Attributes
    ----------
    version : int
        Grows with each change of the map.
    shards : tuple of Shard
        By number.
    """

    version: int
    shards: tuple[Shard, ...]

    def find(self, name: str) -> Shard | None:
        """Return the shard of this name; ``None`` if it was removed."""
        return next((shard for shard in self.shards if shard.name == name), None)


def check_shards(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Return the shards by number.

    Raises
    ------
    ConfigError
        If the list is empty, or names or numbers are wrong or occur twice.
    """
    found = sorted(shards, key=lambda shard: shard.number)
    if not found:
        raise ConfigError("a cluster of 0 shards: give the address of at least one feeder")
    for shard in found:
        if not 0 <= shard.number < MOST_SHARDS:
            raise ConfigError(
                f"shard {shard.name!r} has number {shard.number}: numbers go from 0 to "
                f"{MOST_SHARDS - 1}"
            )
    names = Counter(shard.name for shard in found)
    numbers = Counter(shard.number for shard in found)
    for shard in found:
        for what, count in (("name", names[shard.name]), ("number", numbers[shard.number])):
            if count > 1:
                raise ConfigError(f"{count} shards have the {what} of {shard}: give each its own")
    return tuple(found)
