"""Checks of user arguments. Each message states the fact, the number and the remedy."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import numbers
import operator
import os
from multiprocessing.context import BaseContext
from typing import Any

import numpy.typing as npt

from async_loader.errors import ConfigError, Unsupported

MOST = 1 << 53
"""The largest count and size: limiters and rates reckon with floats, which skip integers above."""
_MOST_VERSION = (1 << 63) - 1  # of the field that steps have it in


def whole(name: str, value: Any, least: int, most: float = MOST) -> int:
    """Return ``value`` as an int within bounds. Raises ConfigError."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or number < least:
        raise ConfigError(f"{name} is {value!r}: give an integer of at least {least}")
    if number > most:
        raise ConfigError(f"{name}={number}: it must be at most {most:,}")
    return number


def seed_of(seed: object) -> int:
    """Return a seed as an int of any size. Raises ConfigError."""
    return whole("seed", seed, 0, math.inf)


def version_of(version: object) -> int:
    """Return the version of a policy. Raises ConfigError."""
    return whole("version", version, 0, _MOST_VERSION)


def real(value: object) -> float:
    """Return a number as a float.

    NaN for anything but a real number, and infinity for an int beyond the largest float.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def share(name: str, value: object, what: str) -> float:
    """Return a number from 0 to 1 as a float. Raises ConfigError. ``what``: what it is."""
    made = real(value)
    if not 0 <= made <= 1:
        raise ConfigError(f"{name}={value!r}: {what} is 0 to 1")
    return made


def check_ids(array: npt.NDArray[Any]) -> None:
    """Raise ConfigError for ids that are not integers: floats would be cut, or rounded."""
    if array.size and array.dtype.kind not in "iu":
        raise ConfigError(f"ids are integers, as in a batch's `index`, not {array.dtype}")


def path_of(name: str, value: object) -> str:
    """Return a path as text. Raises ConfigError for what names no file, such as bytes or ``""``."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{name}={value!r}: give a path, as text or as a pathlib.Path")
    if not text:
        raise ConfigError(f"{name} is empty: give a path, '.' for the current folder")
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(text):
            return text
    raise ConfigError(f"{name}={text!r} has a character that no file's name has: leave it out")


def one_of(name: str, value: object, allowed: tuple[Any, ...]) -> None:
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigError(f"{name} is {value!r}: give one of {', '.join(map(repr, allowed))}")


def callable_or_none(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigError(f"{name} is {type(value).__name__}: give a callable or None")
    return value


def context_of(context: str | BaseContext | None) -> BaseContext:
    if isinstance(context, BaseContext):
        # The module-level default has no start method of its own until it is resolved.
        return multiprocessing.get_context(context.get_start_method())
    if context is not None and context not in multiprocessing.get_all_start_methods():
        raise ConfigError(
            f"multiprocessing_context is {context!r}: give one of "
            f"{', '.join(multiprocessing.get_all_start_methods())}"
        )
    return multiprocessing.get_context(context or multiprocessing.get_start_method())


def require_linux(what: str) -> None:
    """Raise Unsupported where shared memory and descriptors of processes are not to be had."""
    if not (hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")):
        raise Unsupported(
            f"{what} needs Linux 5.3 or later; on this system clients of a feeder work: "
            "connect('tcp://host:port'), its writers and latest()"
        )


def refuse_start_in_child() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a loader was built while a worker process imports the main script: keep what the "
            "script does under "
            'if __name__ == "__main__"'
        )
