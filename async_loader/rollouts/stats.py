"""What a table of rollouts holds, what became of its prompts, and what waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from async_loader.public_names import set_public_names
from async_loader.replay.table.waiters import Waiting
from async_loader.stats import Stats

__all__ = ["RolloutStats"]
set_public_names(globals())


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats(Stats):
    """Counts at one moment: ``drawn == trained + sum(ended.values()) + under_way``.

    Attributes
    ----------
    states : dict of str to int
        Groups by state: reserved, ready, delivered, trained (kept for replay).
    slots, free : int
        Places of groups that were not trained yet; those that are free.
    prompts_waiting : int
        Prompts that were given back, or come from an iterator, and wait for a generator.
    version, step : int
        The newest policy; the newest batch.
    drawn, trained : int
        Prompts, each counted once.
    ended : dict of str to int
        Prompts that were given up, by reason: "filtered", "deadline", "stale", ...
    given_back : dict of str to int
        Groups that ended, and whose prompts were tried again, by reason.
    late : int
        Commits and updates that were too late.
    oldest_s : float
        The age of the oldest group in a slot.
    lags : tuple of int
        Versions between each group of the newest batch and its policy.
    exhausted : bool
        No group can come any more.
    nbytes : int
        Of all values.
    waiting : tuple of Waiting
        What waits, and for what.
    """

    KIND: ClassVar[str] = "rollouts"
    COUNTERS: ClassVar[frozenset[str]] = frozenset({"drawn", "trained", "late"})

    states: dict[str, int]
    slots: int
    free: int
    prompts_waiting: int
    version: int
    step: int
    drawn: int
    trained: int
    ended: dict[str, int]
    given_back: dict[str, int]
    late: int
    oldest_s: float
    lags: tuple[int, ...]
    exhausted: bool
    nbytes: int
    waiting: tuple[Waiting, ...]

    @property
    def under_way(self) -> int:
        """Prompts that were drawn and are neither trained nor given up."""
        return self.prompts_waiting + self.slots - self.free

    def numbers(self) -> dict[str, float]:
        """See `Stats.numbers`; with groups by state, prompts by reason, and the largest lag."""
        return {
            **super(RolloutStats, self).numbers(),
            **{f"{state}_groups": float(count) for state, count in self.states.items()},
            "ended": float(sum(self.ended.values())),
            "given_back": float(sum(self.given_back.values())),
            "lag": float(max(self.lags, default=0)),
            "waiting": float(len(self.waiting)),
        }

    def __str__(self) -> str:
        """Return a line of groups, one of prompts, and one for each that waits."""
        held = ", ".join(f"{count} {state}" for state, count in self.states.items() if count)
        ended = "".join(f", {count} {reason}" for reason, count in self.ended.items())
        lines = [
            f"{held or 'no'} groups in {self.slots} slots, version {self.version}, lag "
            f"{max(self.lags, default=0)} at most",
            f"prompts: {self.drawn} drawn, {self.trained} trained{ended}, {self.under_way} under "
            f"way, {sum(self.given_back.values())} tried again",
        ]
        lines += [
            f"{one.waited_s:.1f} s: {one.what} waits for {one.reason}" for one in self.waiting
        ]
        return "\n".join(lines)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> RolloutStats:
        """Return the counts that a table has sent."""
        waiting = tuple(
            Waiting(what=what, who="1 call", reason=why, waited_s=waited)
            for what, why, waited in said["waiting"]
        )
        return cls(**{**said, "lags": tuple(said["lags"]), "waiting": waiting})
