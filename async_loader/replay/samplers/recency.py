"""Recency: newer items more often."""

from __future__ import annotations

import math

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.array_types import Ids
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.prioritized import SumTree
from async_loader.replay.samplers.priority_rules import Linear, schedule
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows


class Recency(Binding):
    """P(i) in proportion to 2 ** (-age(i) / half_life), independently: an item with ``half_life``
    newer ones is drawn half as often as the newest.

    age(i) is how many of the items that are there are newer. It emphasizes recent experience as
    Wang and Ross 2019 do ("Boosting Soft Actor-Critic: Emphasizing Recent Experience without
    Forgetting the Past", ERE). There the last of K updates after an episode draw uniformly from the
    newest N * eta ** (1000 * k / K) items, so each update has to know its number; here the chances
    fall smoothly with the age, and every draw is alike. As there, no weights correct for it. A
    half-life far above the number of items is uniform; ``Linear`` moves it with the number of
    draws, as eta is annealed there.

    Cost: about 40 us for 256 of a million; O(log rows) an item, amortised. Memory: 24 bytes a row,
    and 32 to 64 for a tree.

    Parameters
    ----------
    half_life : float | Linear
        Items, above 0.
    """

    prioritized = False
    weighted = False
    repeats = True

    @explain_wrong_names
    def __init__(self, half_life: float | Linear) -> None:
        super().__init__()
        self._schedule = schedule("half_life", half_life)
        if min(self._schedule.start, self._schedule.end) <= 0:
            raise ConfigError(f"half_life={half_life!r}: give a number of items above 0")
        self.half_life = half_life if isinstance(half_life, Linear) else self._schedule.start

    def reset(self) -> None:
        rows = self._items.rows
        self._place = np.full(rows, _GONE, np.int64)
        self._begin(2 * rows)

    def _begin(self, places: int) -> None:
        # each item takes the next place; a place that an item has left stays empty
        self._rows, self._tree = np.empty(places, np.int64), SumTree(places)
        self._next = self._held = 0

    def insert(self, rows: Rows, priority: Priorities) -> None:
        rows = rows[self._place[rows] == _GONE]
        if self._next + len(rows) > len(self._rows):  # once in as many arrivals as there are rows
            there = self._order()
            self._begin(len(self._rows))
            self._append(there)
        self._append(rows)

    def _append(self, rows: Rows) -> None:
        places = np.arange(self._next, self._next + len(rows))
        self._place[rows], self._rows[places] = places, rows
        self._tree.set(places, np.ones(len(rows)))
        self._next += len(rows)
        self._held += len(rows)

    def remove(self, rows: Rows) -> None:
        rows = np.unique(rows[self._place[rows] != _GONE])
        self._tree.set(self._place[rows], np.zeros(len(rows)))
        self._place[rows] = _GONE
        self._held -= len(rows)

    def _order(self) -> Rows:
        """Return all rows, oldest first. O(rows)."""
        rows: Rows = self._rows[np.flatnonzero(self._tree.leaves[: self._next])]
        return rows

    def draw(self, count: int) -> Draw:
        ages = self._ages(count, self._schedule.at(self._draws))
        self._draws += 1
        # the middle of what each item has of [0, 1), the oldest first
        middles = (self._held - ages - 0.5) / self._held
        return Draw(self._rows[self._tree.draw(middles, stratified=False)[0]])

    def _ages(self, count: int, half_life: float) -> Ids:
        """Draw ages from the geometric distribution, of those that are there.

        By its inverse: the chance of an age below a is (1 - q ** a) / (1 - q ** items), with
        q = 2 ** (-1 / half_life).
        """
        rate = -math.log(2.0) / half_life
        below = np.log1p(self._numbers.take(count) * math.expm1(self._held * rate)) / rate
        return np.minimum(below.astype(np.int64), self._held - 1)

    def __repr__(self) -> str:
        return f"Recency(half_life={self.half_life!r})"


_GONE = -1
