"""Which thread draws the batches of a source: the caller's or the producer's. Draws nothing."""

from __future__ import annotations

from typing import Literal

DrawingThread = Literal["caller", "producer"]

HAND_OVER_S = 250e-6
"""What a batch that another thread made costs a learner on the CPU, beyond the work on it: two
wake-ups, cold caches, and waits for Python's lock. Measured by the row "dqn" of the benchmarks.
"""
_BACK_BELOW = 0.6
"""The producer stops to draw at this part of `HAND_OVER_S`, so that a cost near it changes nothing.
"""
_WINDOW = 6
_FIRST = 2
"""Batches that do not count: they compile kernels and fault in pages."""


class DrawPlace:
    """Decides by what the last batches cost. One thread at a time calls it.

    Parameters
    ----------
    hand_over_s : float

    Attributes
    ----------
    thread : "caller" | "producer"
        Where the next batch should be drawn.
    """

    def __init__(self, hand_over_s: float = HAND_OVER_S) -> None:
        self.thread: DrawingThread = "caller"
        self._hand_over_s = hand_over_s
        self._costs: list[float] = []
        self._ignored = _FIRST

    def note(self, seconds: float) -> bool:
        """Count the work on one batch, without waits; return whether the other thread should draw.

        The second smallest of a few counts: what another program, or a thread that holds Python's
        lock, added to the others is no work.
        """
        if self._ignored:
            self._ignored -= 1
            return False
        costs = self._costs
        costs.append(seconds)
        if len(costs) < _WINDOW:
            return False
        cost = sorted(costs)[1]
        costs.clear()
        if self.thread == "caller" and cost > self._hand_over_s:
            self.thread = "producer"
        elif self.thread == "producer" and cost < self._hand_over_s * _BACK_BELOW:
            self.thread = "caller"
        else:
            return False
        return True
