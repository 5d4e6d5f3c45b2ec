"""Uniform: every item equally often."""

from __future__ import annotations

import numpy as np

from async_loader.name_hints import explain_wrong_names
from async_loader.replay.samplers.binding import SPARSE, Binding
from async_loader.replay.samplers.sampler import Draw, Reading, Rows, wrong_counts
from async_loader.validation import one_of

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
