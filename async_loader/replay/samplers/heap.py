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
        self._size = self._age = 0

    def __len__(self) -> int:
        return self._size

    @property
    def order(self) -> Rows:
        """The rows in the order of the heap: nearly sorted, and sorted after `sort`."""
        return self._heap[: self._size]

    def put(self, rows: Rows, keys: Floats) -> None:
        """Set the keys of rows, new or known."""
        self._size = int(self._k.put(*self._arrays, self._size, self._age, rows, keys))
        self._age += len(rows)

    def remove(self, rows: Rows) -> None:
        self._size = int(self._k.take_out(*self._arrays, self._size, rows))

    def smallest(self, count: int) -> Rows:
        """Return the first ``count`` rows in order, or all."""
        out = np.empty(min(count, self._size), np.int64)
        if len(out):
            frontier = np.empty(2 * len(out) + 2, np.int64)
            self._k.smallest(
                self._heap, self._keys, self._ages, self._size, out, frontier, self._places
            )
        return out

    def sort(self) -> None:
        """Make `order` exact. O(n log n)."""
        rows = self._heap[: self._size]
        self._heap[: self._size] = rows[np.lexsort((self._ages[rows], self._keys[rows]))]
        self._places[self._heap[: self._size]] = np.arange(self._size)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self._heap, self._places, self._keys, self._ages

    def state(self) -> dict[str, Any]:
        return {"heap": self.order.copy(), "keys": self._keys, "ages": self._ages, "age": self._age}

    def restore(self, state: dict[str, Any]) -> None:
        heap = np.array(state["heap"], np.int64)
        self._size, self._age = len(heap), int(state["age"])
        self._heap[: self._size] = heap
        self._places[:] = -1
        self._places[heap] = np.arange(self._size)
        for ours, theirs in ((self._keys, state["keys"]), (self._ages, state["ages"])):
            ours[: len(theirs)] = theirs
