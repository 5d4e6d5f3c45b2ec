"""Rows by key, with the first in constant time. O(log rows) an item."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Floats
from async_loader.replay.samplers.sampler import Rows


class Heap:
    """Rows with keys, smallest first; of equal keys the one that was set earlier.

    Parameters
    ----------
    rows : int
    """

    def __init__(self, rows: int) -> None:
        from async_loader.replay.samplers import heap_kernels  # late: see compiled.py

        self._k: Any = heap_kernels
        self._heap = np.full(rows, -1, np.int64)
        self._places = np.full(rows, -1, np.int64)
        self._keys, self._ages = np.zeros(rows), np.zeros(rows, np.int64)
        self._counts = np.zeros(2, np.int64)  # rows in the heap; the age of the next key

    def __len__(self) -> int:
        return int(self._counts[0])

    @property
    def order(self) -> Rows:
        """The rows in the order of the heap: nearly sorted, and sorted after `sort`."""
        return self._heap[: len(self)]

    def put(self, rows: Rows, keys: Floats) -> None:
        """Set the keys of rows, new or known."""
        self._k.put(*self._arrays, rows, keys)

    def remove(self, rows: Rows) -> None:
        self._k.take_out(*self._arrays, rows)

    def smallest(self, count: int) -> Rows:
        """Return the first ``count`` rows in order, or all."""
        size = len(self)
        out = np.empty(min(count, size), np.int64)
        if len(out):
            frontier = np.empty(2 * len(out) + 2, np.int64)
            self._k.smallest(self._heap, self._keys, self._ages, size, out, frontier, self._places)
        return out

    def sort(self) -> None:
        """Make `order` exact. O(n log n)."""
        rows = self.order
        in_order = rows[np.lexsort((self._ages[rows], self._keys[rows]))]
        self._k.arrange(self._heap, self._places, in_order)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self._heap, self._places, self._keys, self._ages, self._counts
