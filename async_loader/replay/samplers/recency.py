"""Recency: newer items more often."""

from __future__ import annotations

import math

import numpy as np

from async_loader.errors import ConfigError
from async_loader.names import explain_wrong_names
from async_loader.replay.array_types import Ids
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.priority_rules import Linear, schedule
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows
from async_loader.replay.samplers.tree import SumTree


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

    Cost: about 40 us for 256 of a million; O(log rows) an item, amortised.

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
        self._arrivals = Arrivals(self._items.rows)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._arrivals.append(rows)

    def remove(self, rows: Rows) -> None:
        self._arrivals.remove(rows)

    def draw(self, count: int) -> Draw:
        half_life = self._schedule.at(self._draws)
        self._draws += 1
        return Draw(self._arrivals.newest(self._ages(count, half_life)))

    def _ages(self, count: int, half_life: float) -> Ids:
        """Draw ages from the geometric distribution, of those that are there.

        By its inverse: the chance of an age below a is (1 - q ** a) / (1 - q ** items), with
        q = 2 ** (-1 / half_life).
        """
        there, rate = len(self._arrivals), -math.log(2.0) / half_life
        below = np.log1p(self._numbers.take(count) * math.expm1(there * rate)) / rate
        return np.minimum(below.astype(np.int64), there - 1)

    def __repr__(self) -> str:
        return f"Recency(half_life={self.half_life!r})"


_GONE = -1
_LOOK = 4096


class Arrivals:
    """A ring of places, in which each item takes the next one, and a tree of the taken places.

    A place is counted for ever; its slot in the ring is the rest of a division. Places that items
    have left at the old end are given up, so that a table that overwrites its oldest steps goes
    round. If items that stay for long fill the ring with gaps, they move together: O(rows), once in
    a quarter as many arrivals.

    Memory: 16 bytes a row, and 16 to 40 for the tree.

    Parameters
    ----------
    rows : int
        Of the table.
    """

    def __init__(self, rows: int) -> None:
        self._place = np.full(rows, _GONE, np.int64)
        self._slots = rows + rows // 4 + 64
        self._begin()

    def _begin(self) -> None:
        self._rows = np.full(self._slots, _GONE, np.int64)
        self._taken = SumTree(self._slots)
        self._oldest = self._next = 0
        self._laps = [0, 0]  # items in places of even and of odd rounds

    def __len__(self) -> int:
        return sum(self._laps)

    def append(self, rows: Rows) -> None:
        """Add rows at the new end, in their order, except for known ones."""
        rows = rows[self._place[rows] == _GONE]
        while len(rows):
            room = self._slots - (self._next - self._oldest)
            if not room:
                self._move_together()
                continue
            self._put(rows[:room])
            rows = rows[room:]

    def _put(self, rows: Rows) -> None:
        places = np.arange(self._next, self._next + len(rows))
        slots = places % self._slots
        self._place[rows], self._rows[slots] = places, rows
        self._taken.set(slots, np.ones(len(rows)))
        self._count(places, 1)
        self._next += len(rows)

    def remove(self, rows: Rows) -> None:
        """Take rows out, except for unknown ones."""
        rows = np.unique(rows[self._place[rows] != _GONE])
        if not len(rows):
            return
        places = self._place[rows]
        slots = places % self._slots
        self._place[rows] = self._rows[slots] = _GONE
        self._taken.set(slots, np.zeros(len(rows)))
        self._count(places, -1)
        self._give_up()

    def _count(self, places: Ids, by: int) -> None:
        odd = int((places // self._slots & 1).sum())
        self._laps[1] += by * odd
        self._laps[0] += by * (len(places) - odd)

    def _give_up(self) -> None:
        """Give up the places at the old end that items have left."""
        while self._oldest < self._next:
            at = self._oldest % self._slots
            some = self._rows[at : at + min(_LOOK, self._next - self._oldest)]
            taken = some != _GONE
            first = int(taken.argmax())
            if taken[first]:
                self._oldest += first
                return
            self._oldest += len(some)

    def order(self) -> Rows:
        """Return all rows, oldest first. O(rows)."""
        rows = self._rows[np.arange(self._oldest, self._next) % self._slots]
        found: Rows = rows[rows != _GONE]
        return found

    def _move_together(self) -> None:
        rows = self.order()
        self._begin()
        self._put(rows)

    def newest(self, ranks: Ids) -> Rows:
        """Return the rows of ranks: 0 is the newest item. All must be there."""
        of_old = self._laps[self._oldest // self._slots & 1]
        from_oldest = len(self) - 1 - ranks
        # in the ring the later round comes first
        later = len(self) - of_old
        place = np.where(from_oldest < of_old, from_oldest + later, from_oldest - of_old)
        slots, _ = self._taken.find(place + 0.5)
        rows: Rows = self._rows[slots]
        return rows
