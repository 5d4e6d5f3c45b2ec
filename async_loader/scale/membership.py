"""The shards of a cluster as its directory knows them. Plain state: no Ray, no clock, no thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from async_loader.scale.shard_map import Shard


class Membership:
    """What is known of the shards, and the version of it.

    Parameters
    ----------
    first_version : int
        Above all versions of earlier directories of this cluster.
    """

    def __init__(self, first_version: int) -> None:
        self.version = first_version
        self.retired: set[int] = set()
        """Numbers of shards that were removed: ids of their rows may still be about."""
        self.reasons: dict[str, str] = {}
        """By name: why a shard does not serve."""
        self.details: dict[str, Mapping[str, Any]] = {}
        self._shards: dict[str, Shard] = {}

    def shards(self) -> tuple[Shard, ...]:
        """Return the shards by number. One that has never served is not among them."""
        return tuple(sorted(self._shards.values(), key=lambda one: one.number))

    def numbers(self) -> set[int]:
        """Return all numbers that are taken."""
        return {one.number for one in self._shards.values()} | self.retired

    def describe(self, said: Mapping[str, Any]) -> bool:
        """Take what a shard says of itself; return whether the map has changed."""
        name = said["name"]
        self.details[name] = said
        self.reasons[name] = said["reason"]
        self.retired |= set(said["retired"])
        if said["number"] in self.retired or said["address"] is None:
            return False
        return self._put(
            Shard(
                name=name,
                number=said["number"],
                address=said["address"],
                host=said["host"],
                incarnation=said["incarnation"],
                state=said["state"],
            )
        )

    def lost(self, name: str, reason: str) -> bool:
        """Note that a shard cannot be reached; return whether the map has changed."""
        self.reasons[name] = reason
        known = self._shards.get(name)
        return known is not None and self._put(replace(known, state="lost"))

    def forget(self, names: Iterable[str]) -> None:
        """Remove shards for good. Their numbers are not given again."""
        for name in names:
            gone = self._shards.pop(name, None)
            said = self.details.pop(name, None)
            self.reasons.pop(name, None)
            number = gone.number if gone is not None else said["number"] if said else None
            if number is not None:
                self.retired.add(number)
        self.version += 1

    def incarnation(self, name: str) -> int | None:
        """Return the incarnation of a shard that the map has, and that is not lost."""
        known = self._shards.get(name)
        return None if known is None or known.state == "lost" else known.incarnation

    def not_behind(self, version: int) -> bool:
        """Go beyond a version that a client has; return whether that was needed.

        An earlier directory, on a node whose clock is ahead, has told it.
        """
        if version <= self.version:
            return False
        self.version = version + 1
        return True

    def _put(self, shard: Shard) -> bool:
        known = self._shards.get(shard.name)
        if shard == known or (known is not None and shard.incarnation < known.incarnation):
            return False
        self._shards[shard.name] = shard
        self.version += 1
        return True
