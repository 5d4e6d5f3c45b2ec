"""What a table of rollouts holds, what became of its prompts, and what waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from async_loader.replay.table.waiters import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
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

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> RolloutStats:
        """Return the counts that a table has sent."""
        waiting = tuple(
            Waiting(what=what, who="1 call", reason=why, waited_s=waited)
            for what, why, waited in said["waiting"]
        )
        return cls(**{**said, "lags": tuple(said["lags"]), "waiting": waiting})
