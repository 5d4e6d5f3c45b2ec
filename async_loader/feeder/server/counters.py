"""Counts of messages, bytes and errors; rates of counts."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence

from async_loader.feeder.server.sessions import SessionEnd
from async_loader.feeder.wire import ErrorCode, Plane

RATE_S = 2.0
"""Time over which a current rate is measured, at least."""


class Rates:
    """How fast two counts grow now, and on average since `begin`.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.
    first, second : int
        The counts of now: those of a restored table are not 0.
    """

    def __init__(self, clock: Callable[[], float], first: int = 0, second: int = 0) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=3)
        self.begin(first, second)

    def begin(self, first: int, second: int) -> None:
        """Begin anew from these counts, which a load or a clear has set."""
        self._begun = self._clock(), first, second
        self._marks.clear()
        self._marks.append(self._begun)

    @property
    def due(self) -> bool:
        """Whether `note` would keep counts."""
        return self._clock() >= self._marks[-1][0] + RATE_S

    def note(self, first: int, second: int) -> None:
        """Note the present counts. Cheap; called when they may have changed."""
        if self.due:
            self._marks.append((self._clock(), first, second))

    def now(self, first: int, second: int) -> tuple[float, float]:
        """Return the rate of each a second, over the last `RATE_S` or longer."""
        now = self._clock()
        old = [mark for mark in self._marks if mark[0] + RATE_S <= now] or [self._marks[0]]
        return _rates(old[-1], (now, first, second))

    def mean(self, first: int, second: int) -> tuple[float, float]:
        """Return the rate of each a second, since `begin`."""
        return _rates(self._begun, (self._clock(), first, second))


class Totals:
    """What was added to some counts since the start: it only grows, as counters of metrics do.

    Parameters
    ----------
    *counts : int
        The counts of now: those of a restored table are not 0, and are not added.
    """

    def __init__(self, *counts: int) -> None:
        self._added = [0] * len(counts)
        self._begun = counts

    def of(self, *counts: int) -> list[int]:
        """Return the totals. ``counts``: the present ones."""
        grown = zip(self._added, counts, self._begun, strict=True)
        return [added + max(0, now - begun) for added, now, begun in grown]

    def begin(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Go on from the counts that a load or a clear has set; ``before``: what they were."""
        self._added, self._begun = self.of(*before), tuple(now)


def _rates(old: tuple[float, int, int], new: tuple[float, int, int]) -> tuple[float, float]:
    seconds = max(new[0] - old[0], 1e-3)
    return max(0, new[1] - old[1]) / seconds, max(0, new[2] - old[2]) / seconds


class Counters:
    """Messages and bytes by plane, and errors by reason.

    Attributes
    ----------
    faults : int
        Exceptions of this package.
    ended : Counter of SessionEnd
        Sessions.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.since, self.faults = clock, clock(), 0
        kinds = itertools.product(("messages", "bytes"), Plane, ("in", "out"))
        self._traffic = dict.fromkeys(kinds, 0)
        self._refused: Counter[int] = Counter()
        self.ended: Counter[SessionEnd] = Counter()

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
            "sessions_silent": self.ended.total(),
            "faults": self.faults,
        }
