"""Values that change with the number of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from async_loader.errors import ConfigError
from async_loader.names import explain_wrong_names


@dataclass(frozen=True, slots=True, init=False)
class Linear:
    """From ``start`` to ``end`` over ``draws`` draws of a batch each, and then ``end``.

    Parameters
    ----------
    start, end : float
    draws : int
    """

    start: float
    end: float
    draws: int

    @explain_wrong_names
    def __init__(self, start: float, end: float, draws: int) -> None:
        # plain floats: the repr is to be evaluated, and saved
        for name, value in (("start", start), ("end", end)):
            object.__setattr__(self, name, number(name, value))
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise ConfigError(
                f"draws={draws!r}: a schedule takes a whole number of draws, 1 or more"
            )
        object.__setattr__(self, "draws", draws)

    def at(self, draw: int) -> float:
        """Return the value of draw number ``draw``, counted from 0."""
        return self.start + (self.end - self.start) * min(1.0, draw / self.draws)


def number(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """Return ``value`` as a finite float within bounds. Raises ConfigError."""
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and least <= value <= most
    )
    if not good:
        bounds = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of {least:g} or more"
        raise ConfigError(f"{name}={value!r}: it must be a number {bounds}")
    return float(value)


def schedule(name: str, value: object, most: float = math.inf) -> Linear:
    """Return a schedule with values from 0 to ``most``; a number becomes a constant one.

    Raises ConfigError.
    """
    if not isinstance(value, Linear):
        constant = number(name, value, most=most)
        return Linear(constant, constant, 1)
    if max(value.start, value.end) > most:
        raise ConfigError(f"{name}={value!r}: it must begin and end at numbers from 0 to {most:g}")
    return value
