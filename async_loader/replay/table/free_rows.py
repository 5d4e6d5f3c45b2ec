"""Rows that hold no item, for tables whose remover chooses what makes room."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from async_loader.replay.array_types import Ids


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
        self._listed = bytearray(rows)
        self.taken = -1
        """The row that was taken last, while it is unknown whether it holds
        an item; see `settle`.
        """

    def ready(self) -> bool:
        """Return whether a row can be taken without ending an item."""
        return self._rows - self._unused + len(self._free) > self._spare

    def left(self) -> int:
        """Return how many rows can be taken without ending an item."""
        return max(0, self._rows - self._unused + len(self._free) - self._spare)

    def take(self) -> int:
        """Take the next row.

        No statement here calls anything, so that Ctrl-C comes before or after all of it.
        """
        row = self._unused
        if row < self._rows:
            self._unused, self.taken = row + 1, row
            return row
        row = self._free[0]
        del self._free[0]
        self._listed[row] = 0
        self.taken = row
        return row

    def settle(self, written: bool) -> None:
        """Tell whether the row that was taken last was written.

        If Ctrl-C came before that, it is free again.
        """
        row = self.taken
        if row >= 0 and not written and not self._listed[row]:
            self._free += (row,)
            self._listed[row] = 1
        self.taken = -1

    def put(self, rows: Ids) -> None:
        """Add free rows. After an interrupted call (Ctrl-C) a row may be added twice."""
        for row in rows.tolist():
            if not self._listed[row]:
                # without a call: Ctrl-C does not come between this and the next
                self._free += (row,)
                self._listed[row] = 1

    def state(self) -> dict[str, Any]:
        """Return the free rows: those from ``unused`` on, then ``free``, in order."""
        return {"unused": self._unused, "free": np.fromiter(self._free, np.int64, len(self._free))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._unused, self._free = int(state["unused"]), deque(np.asarray(state["free"]).tolist())
        self._listed = bytearray(self._rows)
        for row in self._free:
            self._listed[row] = 1
