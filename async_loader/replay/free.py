"""Rows that hold no item, for tables whose remover chooses what makes room. Knows no item."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt


class FreeRows:
    """Rows in the order in which they became free: whoever drew an item has as many removals to read it as there are spare rows.

    Parameters
    ----------
    rows : int
    capacity : int
        Rows that hold an item at most; the others stay free.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._free = deque(range(rows))
        self._spare = rows - capacity

    def ready(self) -> bool:
        """Whether one can be taken without an item making room."""
        return len(self._free) > self._spare

    def take(self) -> int:
        return self._free.popleft()

    def put(self, rows: npt.NDArray[np.int64]) -> None:
        self._free.extend(rows.tolist())

    def state(self) -> npt.NDArray[np.int64]:
        """The free rows, in order."""
        return np.array(self._free, np.int64)

    def restore(self, rows: npt.NDArray[np.int64]) -> None:
        self._free = deque(rows.tolist())
