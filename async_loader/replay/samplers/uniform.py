"""Uniform: every item with the same probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.errors import Broken, ConfigError
from async_loader.names import explain_wrong_names
from async_loader.replay.array_types import Bytes
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Draw, Items, Priorities, Reading, Rows

# only from here on is the list let go of: a count that moves about one bound would have it made at
# every draw
_DENSE = 2
_ROUNDS = 1024
"""Draws of different items, at most; each finds half of those that lack, on average."""


class Uniform(Binding):
    """Every item with the same probability, independently.

    Cost: about 3 us for 256; O(1) an item, amortised. Rows are drawn until they hold an item, which
    most do. If fewer than a quarter do, they are drawn from a list of rows that did, which is
    pruned when half of it no longer does.

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
        if not isinstance(replacement, bool):
            raise ConfigError(f"replacement={replacement!r}: it is True or False")
        self.replacement = self.repeats = replacement

    def _bound(self) -> None:
        from async_loader.replay import kernels  # late: see compiled.py
        from async_loader.replay.samplers import random_rows

        self._k, self._rows = random_rows, kernels

    def reset(self) -> None:
        self._list: _RowList | None = None

    def state(self) -> dict[str, Any]:
        """See `Sampler.state`. A loaded table lists its rows anew; so does this one then."""
        self._list = None
        return super().state()

    def insert(self, rows: Rows, priority: Priorities) -> None:
        if self._list is None:
            return
        if self._items.count * _DENSE >= self._items.top:
            self._list = None
        else:
            self._list.add(rows)

    def draw(self, count: int) -> Draw:
        return Draw(self._any(count) if self.repeats else self._different(count))

    def draw_into(self, reading: Reading) -> bool:
        """See NOTE [shortcuts].

        Returns False if rows are listed, few rows hold items, the numbers are too few, or an item
        could not be read.
        """
        items = self._items
        if not self.repeats or items.count * self._k.SPARSE < items.top or not items.count:
            return False
        ahead = self._numbers.ahead(2 * len(reading.ids))
        used = self._rows.read_any(
            reading.geometry, ahead, reading.fields, reading.links, reading.ids, reading.rows
        )
        self._numbers.drop(used)
        return bool(used)

    def _any(self, count: int) -> Rows:
        listed = self._listed()
        among = None if listed is None else listed.rows[: listed.count]
        return self._k.draw_any(self._numbers, self._items, count, among)

    def _listed(self) -> _RowList | None:
        """Return the list of rows, if one is needed."""
        items = self._items
        if self._list is None:
            if items.count * self._k.SPARSE >= items.top:
                return None
            self._list = _RowList(items, np.flatnonzero(items.alive[: items.top]))
        elif self._list.count > 2 * items.count:
            self._list = _RowList(items, self._list.items(items.alive))
        return self._list

    def _different(self, count: int) -> Rows:
        """Return the first ``count`` different rows of an endless uniform sequence."""
        items = self._items
        if count * 2 > items.count:  # most of them: waiting for the last by chance would take long
            listed = self._listed()
            there = (
                np.flatnonzero(items.alive[: items.top])
                if listed is None
                else listed.items(items.alive)
            )
            return there[np.argsort(self._numbers.take(len(there)), kind="stable")[:count]]
        rows: Rows = np.empty(0, np.int64)
        for _ in range(_ROUNDS):
            more = np.concatenate((rows, self._any(count - len(rows))))
            rows = more[np.sort(np.unique(more, return_index=True)[1])]
            if len(rows) == count:
                return rows
        raise Broken(
            f"{_ROUNDS} draws have found {len(rows)} different items where {count} are wanted and "
            f"{items.count:,} are counted. The counts of this table are wrong: save it, and load "
            "it again, which counts anew"
        )

    def __repr__(self) -> str:
        return "Uniform()" if self.replacement else "Uniform(replacement=False)"


class _RowList:
    """Rows that hold an item, or did when they were listed; each once."""

    def __init__(self, items: Items, rows: Rows) -> None:
        self.count = len(rows)
        self.rows = np.empty(max(64, 2 * self.count), np.int64)
        self.rows[: self.count] = rows
        self._within = np.zeros(items.rows, np.uint8)
        self._within[rows] = 1

    def items(self, alive: Bytes) -> Rows:
        """Return the listed rows that hold an item."""
        rows = self.rows[: self.count]
        held: Rows = rows[alive[rows] != 0]
        return held

    def add(self, rows: Rows) -> None:
        new = rows[self._within[rows] == 0]
        self._within[new] = 1
        if self.count + len(new) > len(self.rows):
            more = np.empty(len(self.rows) + len(new), np.int64)
            self.rows = np.concatenate((self.rows, more))
        self.rows[self.count : self.count + len(new)] = new
        self.count += len(new)
