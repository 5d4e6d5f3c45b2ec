"""Rates, and times in which something could not go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

RATE_S = 2.0
"""Time over which a rate is measured, at least."""


class Rates:
    """How fast some counts grow, over the last `RATE_S` seconds or somewhat longer.

    Parameters
    ----------
    counts : callable
        Takes the time and returns the present counts.
    now : float
        Monotonic seconds.
    """

    def __init__(self, counts: Callable[[float], Sequence[float]], now: float) -> None:
        self._counts = counts
        self._marks = deque([(now, counts(now))], maxlen=2)

    def note(self, now: float) -> None:
        """Note the counts, if that is due. Call it often."""
        if now >= self._marks[-1][0] + RATE_S:
            self._marks.append((now, self._counts(now)))

    def of(self, now: float) -> list[float]:
        """Return how fast each count grows a second."""
        then, before = self._marks[0]
        seconds = max(now - then, 1e-3)
        pairs = zip(self._counts(now), before, strict=True)
        return [max(0.0, count - old) / seconds for count, old in pairs]


class BlockedTime:
    """Adds up the seconds from each `note` of a block to the next one without."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0

    def note(self, blocked: bool, now: float) -> None:
        if blocked and self._since is None:
            self._since = now
        elif not blocked and self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def drop(self) -> None:
        """Forget a block: no reader waits any more."""
        self._since = None

    def seconds(self, now: float) -> float:
        """Return the seconds so far, with those of a block that lasts."""
        return self._seconds + (0.0 if self._since is None else now - self._since)
