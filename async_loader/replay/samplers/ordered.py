"""Fifo, Lifo, MinHeap and MaxHeap: items in the order of insertion, or of their priorities."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

import numpy as np

from async_loader.replay.samplers import priority_rules
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows


class HeapSampler(Binding):
    """Base of samplers that keep items in a heap by their priorities. An item without a priority
    gets the largest one ever given, 1.0 before the first.
    """

    prioritized = True
    _sign: ClassVar[float] = -1.0

    def reset(self) -> None:
        from async_loader.replay.samplers import row_kernels  # late: see compiled.py

        self._k, rows = row_kernels, self._items.rows
        self._rows, self._places = np.full((2, rows), -1, np.int64)
        self._keys, self._ages = np.zeros(rows), np.zeros(rows, np.int64)
        self._counts = np.zeros(2, np.int64)  # rows in the heap; the age of the next key
        self._heap = self._rows, self._places, self._keys, self._ages, self._counts

    @property
    def _order(self) -> Rows:
        """The rows in the order of the heap: nearly sorted."""
        return self._rows[: self._counts[0]]

    def check(self, priority: Priorities) -> None:
        priority_rules.check(priority)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._put(rows, self._ever.fill(priority))

    def update(self, rows: Rows, priority: Priorities) -> None:
        self._ever.see(priority)
        self._put(rows, priority)

    def _put(self, rows: Rows, priority: Priorities) -> None:
        self._k.put(*self._heap, rows, self._sign * priority)

    def remove(self, rows: Rows) -> None:
        self._k.take_out(*self._heap, rows)


class _ByPriority(HeapSampler):
    """Items in the order of their priorities, each once in a draw; of equal ones first the one that
    was updated earlier.

    Cost: 2 us and O(log items) an item.
    """

    weighted = False
    repeats = False

    def draw(self, count: int) -> Draw:
        out = np.empty(min(count, len(self._order)), np.int64)
        self._k.smallest(*self._heap, out)
        return Draw(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MinHeap(_ByPriority):
    """The ``count`` items of lowest priority, lowest first, each once.

    As a remover: the lowest priority makes room.
    """

    _sign = 1.0


class MaxHeap(_ByPriority):
    """The ``count`` items of highest priority, highest first, each once."""


class _Ordered(Binding):
    """Items by the order of their insertion, each once in a draw.

    Cost: O(1) and 0.1 us an item, and for a draw 1 ns for each item that was removed since the
    dictionary grew last. Memory: about 100 bytes an item.
    """

    prioritized = False
    weighted = False
    repeats = False

    def reset(self) -> None:
        self._rows: dict[int, None] = {}  # in the order of insertion

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._rows.update(dict.fromkeys(rows.tolist()))

    def remove(self, rows: Rows) -> None:
        for row in rows.tolist():
            self._rows.pop(row, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Fifo(_Ordered):
    """The oldest ``count`` items, oldest first, each once. With ``max_times_sampled=1`` a queue.

    As a remover, and then it is the default, it overwrites rows in order.
    """

    def draw(self, count: int) -> Draw:
        return Draw(np.fromiter(islice(self._rows, count), np.int64))


class Lifo(_Ordered):
    """The newest ``count`` items, newest first, each once. With ``max_times_sampled=1`` a stack."""

    def draw(self, count: int) -> Draw:
        return Draw(np.fromiter(islice(reversed(self._rows), count), np.int64))
