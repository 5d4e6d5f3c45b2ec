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
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._refused: Counter[int] = Counter()
        self.silent = 0

    def came_in(self, plane: Plane, frames: Sequence[Any]) -> None:
        self._count(f"{plane.value}_in", frames)

    def went_out(self, plane: Plane, frames: Sequence[Any]) -> None:
        self._count(f"{plane.value}_out", frames)

    def refused(self, code: int) -> None:
        self._refused[code] += 1

    def _count(self, way: str, frames: Sequence[Any]) -> None:
        self._messages[way] += 1
        self._bytes[way] += sum([len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in frames])

    @property
    def uptime_s(self) -> float:
        return self._clock() - self.since

    def snapshot(self) -> dict[str, int]:
        """All of them by name."""
        names = {code.value: code.name.lower() for code in ErrorCode}
        return {
            **{f"messages_{way}": count for way, count in sorted(self._messages.items())},
            **{f"bytes_{way}": count for way, count in sorted(self._bytes.items())},
            **{f"refused_{names.get(code, code)}": count for code, count in sorted(self._refused.items())},
            "sessions_silent": self.silent,
        }
