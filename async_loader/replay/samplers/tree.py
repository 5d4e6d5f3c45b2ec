"""Sums and minima over rows, in trees. O(log rows) an item."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_loader.replay.samplers.sampler import Rows

Values = npt.NDArray[np.float64]


class _Tree:
    """A tree for kernels to work on: ``nodes``, of which the upper ``width`` are leaves.

    See tree_kernels.py.
    """

    def __init__(self, rows: int, empty: float) -> None:
        from async_loader.replay.samplers import tree_kernels  # late: see compiled.py

        self._k = tree_kernels
        self.width = 1 << max(0, rows - 1).bit_length()
        self.nodes: Values = np.full(2 * self.width, empty)
        self._scratch = np.empty(256, np.int64)

    def room(self, count: int) -> npt.NDArray[np.int64]:
        """Scratch of so many places, or more."""
        if count > len(self._scratch):
            self._scratch = np.empty(count, np.int64)
        return self._scratch

    @property
    def leaves(self) -> Values:
        """One value per row."""
        return self.nodes[self.width :]

    @property
    def root(self) -> float:
        return float(self.nodes[1])


class SumTree(_Tree):
    """Values of 0 or more, and their sums."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 0.0)

    def set(self, rows: Rows, values: Values) -> None:
        """Of a row that is named twice the last value counts. 256 of a million: about 12 us."""
        self._k.add_up(self.nodes, self.width, rows, values, self.room(len(rows)))

    def find(self, masses: Values) -> tuple[Rows, Values]:
        """Rows in which masses from 0 to the total fall, and their values.

        256 of a million: about 15 us.
        """
        rows, values = np.empty(len(masses), np.int64), np.empty(len(masses))
        self._k.descend(self.nodes, self.width, masses, rows, values)
        return rows, values

    def draw(self, numbers: Values, *, stratified: bool) -> tuple[Rows, Values]:
        """As many rows as numbers in [0, 1), in proportion to their values, and those.

        256 of a million: about 15 us.
        """
        rows, values = np.empty(len(numbers), np.int64), np.empty(len(numbers))
        self._k.choose(self.nodes, self.width, numbers, stratified, rows, values)
        return rows, values


class MinTree(_Tree):
    """The smallest of values; infinity where there is none."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, np.inf)

    def set(self, rows: Rows, values: Values) -> None:
        """As `SumTree.set`."""
        self._k.bound(self.nodes, self.width, rows, values, self.room(len(rows)))
