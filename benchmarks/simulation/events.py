"""The queue of events, and simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any


class EventQueue:
    """Calls functions in the order of their times; equal times in the order of their entry.

    Attributes
    ----------
    now : float
        Simulated seconds. Never decreases.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function at a time. Raises ValueError for a time that is past, or no number."""
        if not time_s >= self.now:
            raise ValueError(f"an event at {time_s!r} s cannot be entered at {self.now!r} s")
        heapq.heappush(self._heap, (time_s, next(self._number), call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function after a delay."""
        self.at(self.now + delay_s, call, *arguments)

    def run(self, until_s: float = math.inf) -> None:
        """Run all events up to a time, that time included; the time is ``until_s`` then."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_s:
            self.now, _, call, arguments = pop(heap)
            call(*arguments)
        if math.isfinite(until_s):
            self.now = max(self.now, until_s)
