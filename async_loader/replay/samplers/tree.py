"""Sums and minima over rows, in trees. O(log rows) an item."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Floats
from async_loader.replay.samplers.sampler import Rows


class _Tree:
    """A tree for kernels: ``nodes``, of which the upper ``width`` are
    leaves. See tree_kernels.py.
    """

    def __init__(self, rows: int, empty: float) -> None:
        from async_loader.replay.samplers import tree_kernels  # late: see compiled.py

        self._k = tree_kernels
        self.width = 1 << max(0, rows - 1).bit_length()
        self.nodes: Floats = np.full(2 * self.width, empty)

    def set(self, rows: Rows, values: Floats) -> None:
        """Set values.

        Of a row that occurs twice the last one counts. 256 of a million: about 12 us.
        """
        least = isinstance(self, MinTree)
        nodes = np.empty(len(rows), np.int64)
        self._k.add_up(self.nodes, self.width, rows, values, nodes, least)

    @property
    def leaves(self) -> Floats:
        """The values, one for each row."""
        return self.nodes[self.width :]

    @property
    def root(self) -> float:
        return float(self.nodes[1])


class SumTree(_Tree):
    """Floats of 0 or more, and their sums."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 0.0)

    def draw(self, numbers: Floats, *, stratified: bool) -> tuple[Rows, Floats]:
        """Draw a row for each number in [0, 1), in proportion to their values.

        Return rows and values. 256 of a million: about 15 us.
        """
        rows, values = np.empty(len(numbers), np.int64), np.empty(len(numbers))
        self._k.choose(self.nodes, self.width, numbers, stratified, rows, values)
        return rows, values


class MinTree(_Tree):
    """The smallest of values; infinity without any."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, np.inf)
