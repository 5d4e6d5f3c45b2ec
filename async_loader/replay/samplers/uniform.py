"""Uniform, Balanced and Recency: items at random, whatever their priorities."""

from __future__ import annotations

import math
from array import array

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.array_types import Ids
from async_loader.replay.samplers.binding import SPARSE, Binding
from async_loader.replay.samplers.prioritized import SumTree
from async_loader.replay.samplers.priority_rules import Linear, schedule
from async_loader.replay.samplers.sampler import Draw, Priorities, Reading, Rows, wrong_counts
from async_loader.schema import END_FIELDS
from async_loader.validation import one_of


class Balanced(Binding):
    """Every value of a field equally often, and uniformly among the items of a value.

    Each item of a batch is drawn on its own: a value out of those that some item has now, then one
    of its items, with probability 1 / (values * items of that value). Values come and go with their
    items, and with `update` of the field. Of sequences the value at the first step counts. No
    weights correct for it.

    Cost: about 50 us for 256, and O(values); less than 1 us an item for additions. Memory: 24 bytes
    a row.

    Parameters
    ----------
    field : str
        A field of whole numbers or bools, one for each step: a task, whether an episode succeeded.
        A nested one by its dotted name, as "info.task".

    Raises
    ------
    ConfigError
        For a value that is no name, and for ``terminated``, ``truncated`` and ``done``, which may
        change when an episode ends. When the table gets its schema: for a field that is not there,
        of floats, or of several numbers for a step.
    """

    prioritized = False
    weighted = False
    repeats = True

    @explain_wrong_names
    def __init__(self, field: str) -> None:
        super().__init__()
        if not isinstance(field, str) or not field:
            raise ConfigError(
                f"field={field!r}: give the name of a field of the steps, as in Balanced('task')"
            )
        if field in END_FIELDS:
            raise ConfigError(
                f"Balanced({field!r}): this field may change after its step was added, when the "
                "episode ends; store what you want to balance in a field of another name"
            )
        self.field = field

    def _bound(self) -> None:
        items = self._items
        if items.column is None:
            raise ConfigError(
                f"{self!r} reads a field of steps, and these items have none: make Items with "
                "column="
            )
        column = items.column(self.field)
        if column.ndim != 1:
            raise ConfigError(
                f"{self!r} needs one number for each step, and field {self.field!r} has "
                f"{list(column.shape[1:])}: store the one to balance by in a field of its own"
            )
        if column.dtype.kind not in "iub":
            raise ConfigError(
                f"{self!r} needs a field of whole numbers or bools, and {self.field!r} is "
                f"{column.dtype}: store which class a step is of as an integer, as np.digitize "
                "makes it of a float"
            )
        self._column = items.column

    def reset(self) -> None:
        rows = self._items.rows
        self._value, self._place = array("q", bytes(8 * rows)), array("q", [_NONE]) * rows
        self._rows: dict[int, array[int]] = {}  # a list for each value that some row has

    def _put(self, rows: Rows) -> None:
        values = self._column(self.field)[rows].astype(np.int64)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            if self._place[row] != _NONE:
                self._take(row)
            mine = self._rows.setdefault(value, array("q"))
            self._value[row], self._place[row] = value, len(mine)
            mine.append(row)

    def _take(self, row: int) -> None:
        """Take a row out of its list; the last one there takes its place."""
        mine, place = self._rows[self._value[row]], self._place[row]
        last = mine.pop()
        if last != row:
            mine[place], self._place[last] = last, place
        self._place[row] = _NONE
        if not mine:
            del self._rows[self._value[row]]

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._put(rows)

    def remove(self, rows: Rows) -> None:
        for row in rows.tolist():
            if self._place[row] != _NONE:
                self._take(row)

    def changed(self, rows: Rows) -> None:
        """See sampler.py, NOTE [fields of steps]."""
        self._put(rows[np.asarray(self._place)[rows] != _NONE])

    def draw(self, count: int) -> Draw:
        numbers, lists = self._numbers.take(2 * count), list(self._rows.values())
        chosen = [lists[i] for i in (numbers[::2] * len(lists)).astype(np.int64).tolist()]
        places = (numbers[1::2] * list(map(len, chosen))).astype(np.int64).tolist()
        rows = [mine[place] for mine, place in zip(chosen, places, strict=True)]
        return Draw(np.array(rows, np.int64))

    def __repr__(self) -> str:
        return f"Balanced({self.field!r})"


_NONE = -1  # the place of a row that is in no list


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


_ROUNDS = 1024
"""Draws of different items, at most; each finds half of those that lack, on average."""


class Uniform(Binding):
    """Every item with the same probability, independently.

    Cost: about 3 us for 256. Rows are drawn until they hold an item, which most do. If fewer than a
    quarter do, those that do are listed for each draw: 60 us for a million rows.

    Parameters
    ----------
    replacement : bool
        Whether a batch may hold an item more than once.
    """

    prioritized = False
    weighted = False

    @explain_wrong_names
    def __init__(self, replacement: bool = True) -> None:
        super().__init__()
        one_of("replacement", replacement, (True, False))
        self.replacement = self.repeats = replacement

    def _bound(self) -> None:
        from async_loader.replay import kernels  # late: see compiled.py
        from async_loader.replay.samplers import row_kernels

        self._k, self._rows = row_kernels, kernels

    def draw(self, count: int) -> Draw:
        return Draw(self._any_items(count) if self.repeats else self._different(count))

    def draw_into(self, reading: Reading) -> bool:
        """See NOTE [shortcuts].

        Returns False if few rows hold items, the numbers are too few, or an item
        could not be read.
        """
        items = self._items
        if not self.repeats or items.count * SPARSE < items.top or not items.count:
            return False
        ahead = self._numbers.ahead(2 * len(reading.ids))
        used = self._rows.read_any(
            reading.geometry, ahead, reading.fields, reading.links, reading.ids, reading.rows
        )
        self._numbers.drop(used)
        return bool(used)

    def _different(self, count: int) -> Rows:
        """Return the first ``count`` different rows of an endless uniform sequence."""
        items = self._items
        if count * 2 > items.count:  # most of them: waiting for the last by chance would take long
            there = self._there()
            chosen: Rows = np.argsort(self._numbers.take(len(there)), kind="stable")[:count]
            return there[chosen]
        rows: Rows = np.empty(0, np.int64)
        for _ in range(_ROUNDS):
            more = np.concatenate((rows, self._any_items(count - len(rows))))
            rows = more[np.sort(np.unique(more, return_index=True)[1])]
            if len(rows) == count:
                return rows
        raise wrong_counts(f"{_ROUNDS} draws found {len(rows)} different items of {items.count:,}")

    def __repr__(self) -> str:
        return "Uniform()" if self.replacement else "Uniform(replacement=False)"
