"""The counts of a cluster's tables, and what was lost with its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from async_loader.feeder.status import FeederStatus
from async_loader.replay.stats import TableStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRows:
    """Rows that were lost with the memory of a shard.

    Attributes
    ----------
    shard : str
    incarnation : int
        Of the process that was lost: how often this client had seen the shard start anew.
    rows : int
        Acknowledged to this client's writers, and not restored by the process in its place.
    """

    shard: str
    incarnation: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTableStats(TableStats):
    """A table of a cluster: sums over the shards that answered, and these.

    Attributes
    ----------
    shards : dict of str to TableStats
        By name; those that answered.
    silent : tuple of str
        Shards that did not answer.
    lost : tuple of LostRows
        Since this client was made.
    """

    shards: dict[str, TableStats]
    silent: tuple[str, ...] = ()
    lost: tuple[LostRows, ...] = ()

    def __str__(self) -> str:
        """Return the lines of the whole, of silent shards, and of what was lost."""
        lines = [TableStats.__str__(self)]
        lines += [f"{name} does not answer" for name in self.silent]
        lines += [
            f"{one.rows:,} rows were lost with {one.shard}, incarnation {one.incarnation}"
            for one in self.lost
        ]
        return "\n".join(lines)


class ShardStatus(TypedDict):
    """One shard.

    Attributes
    ----------
    number : int
    address, host : str
    connected : bool
    status : FeederStatus | None
        ``None``: it did not answer.
    """

    number: int
    address: str
    host: str
    connected: bool
    status: FeederStatus | None


class ClusterStatus(TypedDict):
    """A cluster.

    Attributes
    ----------
    shards : dict of str to ShardStatus
    """

    shards: dict[str, ShardStatus]


def summed(
    shards: dict[str, TableStats], silent: Sequence[str], lost: Sequence[LostRows]
) -> ClusterTableStats:
    """Add up the counts of the shards that answered."""
    parts = list(shards.values())
    whole: dict[str, Any] = {
        name: sum(getattr(one, name) for one in parts)
        for name in ("size", "inserted", "sampled", "deleted", "streams", "stale")
    }
    for name in ("capacity", "nbytes"):
        known = [getattr(one, name) for one in parts]
        whole[name] = None if None in known else sum(known)
    return ClusterTableStats(
        **whole,
        waiting=tuple(wait for one in parts for wait in one.waiting),
        full=bool(parts) and all(one.full for one in parts),
        shards=shards,
        silent=tuple(silent),
        lost=tuple(lost),
    )
