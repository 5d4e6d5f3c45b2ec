"""Everything that leaves or enters, counted. Formats nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from async_loader.feeder.server.ports import Plane
from async_loader.feeder.wire import ErrorCode


class Counters:
    """Messages and bytes by plane, and what was refused by reason."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.since = clock, clock()
        self._in, self._bytes_in, self._out, self._bytes_out = (dict.fromkeys(Plane, 0) for _ in range(4))
        self._refused: Counter[int] = Counter()
        self.silent = self.faults = 0

    def came_in(self, plane: Plane, frames: Sequence[Any]) -> int:
        """Their bytes."""
        nbytes = sum(map(len, frames))
        self._in[plane] += 1
        self._bytes_in[plane] += nbytes
        return nbytes

    def went_out(self, plane: Plane, nbytes: int) -> None:
        self._out[plane] += 1
        self._bytes_out[plane] += nbytes

    def refused(self, code: int) -> None:
        self._refused[code] += 1

    @property
    def uptime_s(self) -> float:
        return self._clock() - self.since

    def snapshot(self) -> dict[str, int]:
        """All of them by name."""
        ways = (("in", self._in), ("out", self._out), ("in", self._bytes_in), ("out", self._bytes_out))
        names = {code.value: code.name.lower() for code in ErrorCode}
        return {
            **{f"messages_{plane.value}_{way}": counts[plane] for way, counts in ways[:2] for plane in Plane},
            **{f"bytes_{plane.value}_{way}": counts[plane] for way, counts in ways[2:] for plane in Plane},
            **{f"refused_{names.get(code, code)}": count for code, count in sorted(self._refused.items())},
            "sessions_silent": self.silent,
            "faults": self.faults,
        }
