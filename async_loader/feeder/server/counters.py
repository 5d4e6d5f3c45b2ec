"""Counts of messages, bytes and errors; rates; and times in which something could not go on."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable

from async_loader.feeder.wire import ErrorCode, Plane

RATE_S = 2.0
"""Time over which a current rate is measured, at least."""


class Totals:
    """What was added to a table's counts since the start of the feeder, and how fast.

    Totals only grow: what a restore or a load has brought is not counted, and a clear does not
    change them.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.
    counts : tuple of int
        Those of now.
    """

    def __init__(self, clock: Callable[[], float], counts: tuple[int, ...]) -> None:
        self._clock, self._begun = clock, clock()
        self._added = [-count for count in counts]
        self._marks = deque([(self._begun, [0] * len(counts))], maxlen=3)

    def of(self, counts: tuple[int, ...]) -> list[int]:
        """Return the totals. ``counts``: the present ones. Call it often: it notes them."""
        totals = [added + count for added, count in zip(self._added, counts, strict=True)]
        if self.due:
            self._marks.append((self._clock(), totals))
        return totals

    @property
    def due(self) -> bool:
        """Whether `of` would note counts."""
        return self._clock() >= self._marks[-1][0] + RATE_S

    def set(self, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Go on from the counts that a load or a clear has set; ``before``: what they were."""
        changes = zip(self._added, before, now, strict=True)
        self._added = [added + old - new for added, old, new in changes]

    def rates(self, totals: list[int]) -> list[float]:
        """Return how fast each total grows a second, over the last `RATE_S` or longer."""
        now = self._clock()
        old = [mark for mark in self._marks if mark[0] + RATE_S <= now] or [self._marks[0]]
        return _rates(*old[-1], now, totals)

    def means(self, totals: list[int]) -> list[float]:
        """Return how fast each total has grown a second, since the start."""
        return _rates(self._begun, [0] * len(totals), self._clock(), totals)


def _rates(then: float, old: list[int], now: float, new: list[int]) -> list[float]:
    seconds = max(now - then, 1e-3)
    return [(after - before) / seconds for before, after in zip(old, new, strict=True)]


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


class Counters:
    """Messages and bytes by plane, and errors by reason.

    Attributes
    ----------
    faults : int
        Exceptions of this package.
    ended : Counter of str
        Sessions, by `SessionEnd`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.since, self.faults = clock, clock(), 0
        kinds = itertools.product(("messages", "bytes"), Plane, ("in", "out"))
        self._traffic = dict.fromkeys(kinds, 0)
        self._refused: Counter[int] = Counter()
        self.ended: Counter[str] = Counter()

    def passed(self, plane: Plane, way: str, nbytes: int) -> None:
        """Count a message that came ``in`` or went ``out``."""
        self._traffic["messages", plane, way] += 1
        self._traffic["bytes", plane, way] += nbytes

    def refused(self, code: int) -> None:
        self._refused[code] += 1

    @property
    def uptime_s(self) -> float:
        return self._clock() - self.since

    def snapshot(self) -> dict[str, int]:
        """Return all counts by name."""
        traffic = self._traffic.items()
        refused = sorted(self._refused.items())
        return {
            **{f"{what}_{plane.value}_{way}": count for (what, plane, way), count in traffic},
            **{f"refused_{ErrorCode(code).name.lower()}": count for code, count in refused},
            "faults": self.faults,
        }
