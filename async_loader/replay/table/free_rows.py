"""Rows that hold no item, for tables whose remover chooses what makes room."""

from __future__ import annotations

from collections import deque

import numpy as np

from async_loader.replay.array_types import Bytes, Ids


class FreeRows:
    """Free rows, in the order in which they became free.

    A drawn item stays readable for as many removals as there are spare rows.

    Parameters
    ----------
    rows : int
    capacity : int
        Rows that hold an item at most; the others stay free.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._unused = 0  # rows from here on were never used: they come first, and need no list
        self._rows = rows
        self._free: deque[int] = deque()
        self._spare = rows - capacity

    def left(self) -> int:
        """Return how many rows can be taken without ending an item."""
        return max(0, self._rows - self._unused + len(self._free) - self._spare)

    def take(self) -> int:
        """Take the next row."""
        if self._unused < self._rows:
            self._unused += 1
            return self._unused - 1
        return self._free.popleft()

    def put(self, rows: Ids) -> None:
        """Add free rows."""
        self._free.extend(rows.tolist())

    def rebuild(self, ids: Ids, alive: Bytes) -> None:
        """Find the rows without an item: those that never held a step, then by the ids in them."""
        empty = np.flatnonzero(alive == 0)
        self._unused = self._rows
        self._free = deque(empty[np.argsort(ids[empty], kind="stable")].tolist())
