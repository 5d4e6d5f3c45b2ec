"""Rules for the priorities that users give: which are allowed, and what an
item without one gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.arguments import floats_of
from async_loader.replay.samplers.sampler import Priorities
from async_loader.validation import real, whole


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
        object.__setattr__(self, "draws", whole("draws", draws, 1))

    def at(self, draw: int) -> float:
        """Return the value of draw number ``draw``, counted from 0."""
        return self.start + (self.end - self.start) * min(1.0, draw / self.draws)


def number(
    name: str, value: Any, least: float = 0.0, most: float = math.inf, other: str = ""
) -> float:
    """Return ``value`` as a finite float within bounds. Raises ConfigError."""
    made = real(value)
    if not least <= made <= most or math.isinf(made):
        bounds = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of {least:g} or more"
        raise ConfigError(f"{name}={value!r}: it must be a number {bounds}{other}")
    return made


def schedule(name: str, value: object, most: float = math.inf) -> Linear:
    """Return a schedule with values from 0 to ``most``; a number becomes a constant one.

    Raises ConfigError.
    """
    if not isinstance(value, Linear):
        constant = number(name, value, 0.0, most, ", or a Linear(start, end, draws)")
        return Linear(constant, constant, 1)
    if max(value.start, value.end) > most:
        raise ConfigError(f"{name}={value!r}: it must begin and end at numbers from 0 to {most:g}")
    return value


LARGEST = 1e100  # sums of millions of these, squared, are finite
_ALLOWED = f"priorities are numbers from 0 to {LARGEST:g}"


class MaxEver:
    """Gives an item without a priority the largest one ever given, 1.0 before the first: it is soon
    drawn and then gets its own.
    """

    def __init__(self) -> None:
        self.largest: float | None = None

    def see(self, priority: Priorities) -> None:
        """Note given priorities; NaN: not given."""
        if len(priority):
            self.see_one(float(np.fmax.reduce(priority)))  # which passes over NaN

    def see_one(self, priority: float) -> None:
        """Note the largest of some given priorities."""
        if priority == priority and (self.largest is None or priority > self.largest):
            self.largest = priority

    def fill(self, priority: Priorities) -> Priorities:
        """Put the largest priority ever given, these included, in place of NaN. Return them."""
        self.see(priority)
        priority[np.isnan(priority)] = 1.0 if self.largest is None else self.largest
        return priority


@cache
def _kernels() -> Any:
    from async_loader.replay.samplers import row_kernels  # late: see compiled.py

    return row_kernels


def check(priority: Priorities, *, given: bool = False) -> None:
    """Raise ConfigError for a priority that is negative or too large or,
    with ``given``, missing.
    """
    first = int(_kernels().first_refused(priority, LARGEST, not given))
    if first >= 0:
        raise _refused(priority, first, "is not given (new_priority='given' wants one for each)")


def check_given(priority: Priorities) -> None:
    """Raise ConfigError for a NaN in priorities that a caller gave, where it does not stand for
    "not given".
    """
    first = int(_kernels().first_refused(priority, LARGEST, False))
    if first >= 0:
        raise _refused(priority, first, "is NaN, leave that row out or give it a number")


def column_of(priority: object, count: int) -> Priorities:
    """Convert the priorities of ``count`` steps. Raises ConfigError unless each step has one."""
    given = floats_of(priority, "priority")
    if given.shape != (count,):
        raise ConfigError(f"priority has shape {given.shape} for {count} rows: one number for each")
    return given


def unused(sampler: object, remover: object) -> str:
    """Say that a table's sampler and remover use no priorities."""
    return f"this table's {sampler} and {remover} use no priorities: leave them out"


def check_sent(priority: Priorities) -> None:
    """As `check` and `check_given`, with the same messages, in a process without tables and
    kernels.
    """
    good = (priority >= 0) & (priority <= LARGEST)
    if not good.all():
        first = int(np.argmin(good))
        raise _refused(priority, first, "is NaN, leave that row out or give it a number")


def _refused(priority: Priorities, first: int, missing: str) -> ConfigError:
    what = missing if np.isnan(priority[first]) else f"is {priority[first]}"
    return ConfigError(f"priority {first} of {len(priority)} {what}: {_ALLOWED}")
