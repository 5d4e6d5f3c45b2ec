"""MinHeap and MaxHeap: the items of lowest and of highest priority."""

from __future__ import annotations

from typing import ClassVar

from async_loader.replay.samplers import priority_rules
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.heap import Heap
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows


class _ByPriority(Binding):
    """Items in the order of their priorities, each once in a draw; of equal ones first the one that
    was updated earlier.

    An item without a priority gets the largest one ever given, 1.0 before the first. Cost: 2 us and
    O(log items) an item.
    """

    prioritized = True
    weighted = False
    repeats = False
    _sign: ClassVar[float]

    def reset(self) -> None:
        self._heap = Heap(self._items.rows)

    def check(self, priority: Priorities) -> None:
        priority_rules.check(priority)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._heap.put(rows, self._sign * self._ever.fill(priority))

    def update(self, rows: Rows, priority: Priorities) -> None:
        self._ever.see(priority)
        self._heap.put(rows, self._sign * priority)

    def remove(self, rows: Rows) -> None:
        self._heap.remove(rows)

    def draw(self, count: int) -> Draw:
        return Draw(self._heap.smallest(count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MinHeap(_ByPriority):
    """The ``count`` items of lowest priority, lowest first, each once.

    As a remover: the lowest priority makes room.
    """

    _sign = 1.0


class MaxHeap(_ByPriority):
    """The ``count`` items of highest priority, highest first, each once."""

    _sign = -1.0
