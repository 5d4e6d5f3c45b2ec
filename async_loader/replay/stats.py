"""A table in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from async_loader.replay.table.waiters import Waiting
from async_loader.shm.limits import human
from async_loader.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats(Stats):
    """A table in numbers, at one moment.

    Attributes
    ----------
    size : int
        Items that can be drawn.
    capacity : int | None
        Steps that are kept; ``None`` while that depends on a schema that is unknown.
    inserted, sampled, deleted : int
        Items, since the table was made or cleared; deleted counts those that made room too.
    nbytes : int | None
        Shared memory of the full table; ``None`` while the schema is unknown.
    streams : int
        Streams whose episode is open, and those that a feeder's writers have named. Others
        are forgotten; with stacks, an open one is known though its steps have left the table.
    waiting : tuple of Waiting
        The calls and writers that wait for the table, and for what.
    stale : int
        Items that sources with ``max_lag`` have left out because of the version of their policy,
        those of all such sources together, closed ones too. They stay in the table.
    compressed_nbytes : int | None
        Bytes of the values of fields with a codec that the table holds now; ``None`` without one.
    compression : float | None
        The bytes of all such values that were added, over what they were compressed to; ``None``
        without a codec, and before the first.
    full : bool
        Whether items leave as steps come. ``size`` may stay below ``capacity``: what is no item,
        as the observation after an episode's last step, takes a row too.
    """

    KIND: ClassVar[str] = "table"
    COUNTERS: ClassVar[frozenset[str]] = frozenset({"inserted", "sampled", "deleted", "stale"})

    size: int
    capacity: int | None
    inserted: int
    sampled: int
    deleted: int
    nbytes: int | None
    streams: int
    waiting: tuple[Waiting, ...]
    stale: int = 0
    compressed_nbytes: int | None = None
    compression: float | None = None
    full: bool = False

    def numbers(self) -> dict[str, float]:
        """See `Stats.numbers`; with the ratio of samples to inserts, and the number that waits."""
        return {
            **super(TableStats, self).numbers(),
            "samples_per_insert": self.sampled / self.inserted if self.inserted else 0.0,
            "waiting": float(len(self.waiting)),
        }

    def __str__(self) -> str:
        """Return a line of counts, and one for each that waits."""
        most = "" if self.capacity is None else f" of {self.capacity:,}"
        most += " (full)" if self.full else ""
        memory = "" if self.nbytes is None else f" in {human(self.nbytes)}"
        lines = [
            f"{self.size:,}{most} steps{memory}; {self.inserted:,} inserted, {self.sampled:,} "
            f"sampled, {self.deleted:,} deleted; {self.streams} open streams"
        ]
        if self.compressed_nbytes is not None and self.compression is not None:
            lines.append(
                f"fields with a codec take {human(self.compressed_nbytes)}, 1/"
                f"{self.compression:.1f} of what they were"
            )
        if self.stale:
            lines.append(f"{self.stale:,} were left out as too old, by sources with max_lag")
        lines += [
            f"{one.who} waits {one.waited_s:.1f} s to {one.what}: {one.reason}"
            for one in self.waiting
        ]
        return "\n".join(lines)
