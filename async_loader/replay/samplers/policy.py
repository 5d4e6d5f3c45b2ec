"""Priorities as users give them: which are allowed, and what an item gets that came without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers.sampler import Priorities

LARGEST = 1e100  # sums of millions of these, squared, are finite


class MaxEver:
    """An item without a priority gets the largest that was ever given, 1.0 before the first: it is soon drawn, and then known."""

    def __init__(self) -> None:
        self.largest: float | None = None

    def see(self, priority: Priorities) -> None:
        """These were given; NaN is none."""
        known = priority[priority == priority]
        if len(known):
            top = float(known.max())
            self.largest = top if self.largest is None else max(self.largest, top)

    def fill(self, priority: Priorities) -> Priorities:
        """``priority``, and the largest of all in place of NaN."""
        self.see(priority)
        return np.where(np.isnan(priority), 1.0 if self.largest is None else self.largest, priority)

    def state(self) -> Any:
        return self.largest

    def restore(self, state: Any) -> None:
        self.largest = None if state is None else float(state)


def check(priority: Priorities, *, given: bool = False) -> None:
    """Raise ConfigError for a priority that is negative or too large or, with ``given``, is not there."""
    with np.errstate(invalid="ignore"):
        good = (priority >= 0) & (priority <= LARGEST)
    if not given:
        good |= np.isnan(priority)
    if not good.all():
        first = int(np.flatnonzero(~good)[0])
        what = "is not given (new='given' wants one for each)" if np.isnan(priority[first]) else f"is {priority[first]}"
        raise ConfigError(f"priority {first} of {len(priority)} {what}: priorities are numbers from 0 to {LARGEST:g}")
