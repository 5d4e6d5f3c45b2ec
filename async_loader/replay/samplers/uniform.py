"""Uniform: every item equally often."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.samplers.binding import SPARSE, Binding
from async_loader.replay.samplers.sampler import Draw, Priorities, Reading, Rows, wrong_counts

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
        from async_loader.replay.samplers import row_kernels

        self._k, self._rows = row_kernels, kernels

    def reset(self) -> None:
        self._listed: Rows | None = None  # rows that hold an item, or did; each once

    def state(self) -> dict[str, Any]:
        """See `Sampler.state`. A loaded table lists its rows anew; so does this one then."""
        self._listed = None
        return super().state()

    def insert(self, rows: Rows, priority: Priorities) -> None:
        if self._listed is None:
            return
        if self._items.count * _DENSE >= self._items.top:
            self._listed = None
        else:
            new = rows[self._within[rows] == 0]
            self._within[new] = 1
            self._listed = np.concatenate((self._listed, new))

    def draw(self, count: int) -> Draw:
        return Draw(self._any(count) if self.repeats else self._different(count))

    def draw_into(self, reading: Reading) -> bool:
        """See NOTE [shortcuts].

        Returns False if rows are listed, few rows hold items, the numbers are too few, or an item
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

    def _any(self, count: int) -> Rows:
        return self._any_items(count, self._list())

    def _list(self) -> Rows | None:
        """Return the list of rows, if one is needed."""
        items, listed = self._items, self._listed
        if listed is None:
            if items.count * SPARSE >= items.top:
                return None
            listed = np.flatnonzero(items.alive[: items.top])
        elif len(listed) > 2 * items.count:
            listed = listed[items.alive[listed] != 0]
        if listed is not self._listed:
            self._listed, self._within = listed, np.zeros(items.rows, np.uint8)
            self._within[listed] = 1
        return listed

    def _different(self, count: int) -> Rows:
        """Return the first ``count`` different rows of an endless uniform sequence."""
        items = self._items
        if count * 2 > items.count:  # most of them: waiting for the last by chance would take long
            listed = self._list()
            there: Rows = np.arange(items.top) if listed is None else listed
            there = there[items.alive[there] != 0]
            chosen: Rows = np.argsort(self._numbers.take(len(there)), kind="stable")[:count]
            return there[chosen]
        rows: Rows = np.empty(0, np.int64)
        for _ in range(_ROUNDS):
            more = np.concatenate((rows, self._any(count - len(rows))))
            rows = more[np.sort(np.unique(more, return_index=True)[1])]
            if len(rows) == count:
                return rows
        raise wrong_counts(f"{_ROUNDS} draws found {len(rows)} different items of {items.count:,}")

    def __repr__(self) -> str:
        return "Uniform()" if self.replacement else "Uniform(replacement=False)"
