"""Fifo and Lifo: the oldest items, the newest items."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows


class _Ordered(Binding):
    """Items by the order of their insertion, each once in a draw.

    Cost: O(1) an item, about 3 us a call.
    """

    prioritized = False
    weighted = False
    repeats = False
    _from: ClassVar[int]

    def reset(self) -> None:
        from async_loader.replay.samplers import row_kernels  # late: see compiled.py

        self._k = row_kernels
        self._before, self._after, self._ends = row_kernels.new_order(self._items.rows)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._k.append(self._before, self._after, self._ends, rows)

    def remove(self, rows: Rows) -> None:
        self._k.unlink(self._before, self._after, self._ends, rows)

    def draw(self, count: int) -> Draw:
        out = np.empty(count, np.int64)
        links = self._before if self._from else self._after
        return Draw(out[: self._k.walk(links, self._ends[self._from], out)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Fifo(_Ordered):
    """The oldest ``count`` items, oldest first, each once. With ``max_times_sampled=1`` a queue.

    As a remover, and then it is the default, it overwrites rows in order.
    """

    _from = 0


class Lifo(_Ordered):
    """The newest ``count`` items, newest first, each once. With ``max_times_sampled=1`` a stack."""

    _from = 1
