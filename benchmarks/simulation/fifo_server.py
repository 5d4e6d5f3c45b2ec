"""A server with one thread: one job at a time, in the order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.simulation.events import EventQueue

Cost = float | Callable[[], float]
"""Seconds; or a function that returns them when the job begins."""


class FifoServer:
    """Serves jobs one after the other.

    Attributes
    ----------
    jobs : int
        Jobs that were done.
    busy_s : float
        Time spent on jobs, those that are not done yet left out.
    waited_s, longest_wait_s : float
        Time between the arrival of a job and its beginning: the sum over all, and the longest.
    inside_s : float
        Jobs times seconds between arrival and end: the area below the number of jobs inside.
    """

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._queue: deque[tuple[float, Cost, Callable[..., None] | None, tuple[Any, ...]]]
        self._queue = deque()
        self._at_work = False
        self.jobs = 0
        self.busy_s = self.waited_s = self.longest_wait_s = self.inside_s = 0.0

    def __len__(self) -> int:
        """Return the number of jobs inside: those that wait, and the one that is served."""
        return len(self._queue) + self._at_work

    def serve(self, cost: Cost, done: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Queue a job; call ``done`` at its end."""
        self._queue.append((self._events.now, cost, done, arguments))
        if not self._at_work:
            self._begin()

    def _begin(self) -> None:
        arrived, cost, done, arguments = self._queue.popleft()
        wait_s = self._events.now - arrived
        self.waited_s += wait_s
        if wait_s > self.longest_wait_s:
            self.longest_wait_s = wait_s
        self._at_work = True
        cost_s = cost() if callable(cost) else cost
        self._events.after(cost_s, self._end, arrived, cost_s, done, arguments)

    def _end(
        self,
        arrived: float,
        cost_s: float,
        done: Callable[..., None] | None,
        arguments: tuple[Any, ...],
    ) -> None:
        self.jobs += 1
        self.busy_s += cost_s
        self.inside_s += self._events.now - arrived
        self._at_work = False
        if self._queue:
            self._begin()
        if done is not None:
            done(*arguments)
