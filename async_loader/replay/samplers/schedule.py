"""Values that change with the number of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from async_loader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Linear:
    """From ``start`` to ``end`` within so many draws, a batch being one, and then ``end``.

    Parameters
    ----------
    start, end : float
    draws : int
    """

    start: float
    end: float
    draws: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):  # plain floats: the repr is to be evaluated, and saved
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ConfigError(f"draws={self.draws!r}: a schedule takes a whole number of draws, 1 or more")

    def at(self, draw: int) -> float:
        """The value of draw number ``draw``, counted from 0."""
        return self.start + (self.end - self.start) * min(1.0, draw / self.draws)


def number(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """``value`` as a finite float within bounds. Raises ConfigError."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and least <= value <= most
    if not good:
        bounds = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of {least:g} or more"
        raise ConfigError(f"{name}={value!r}: it must be a number {bounds}")
    return float(value)


def schedule(name: str, value: Any) -> Linear:
    """A schedule, or a number as one that stays."""
    if isinstance(value, Linear):
        return value
    constant = number(name, value)
    return Linear(constant, constant, 1)
