"""Checks of user arguments. Each message states the fact, the number and the remedy."""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
from multiprocessing.context import BaseContext
from typing import Any

import numpy.typing as npt

from async_loader.errors import ConfigError, Unsupported

MOST = 1 << 53
"""The largest count and size: limiters and rates reckon with floats, which skip integers above."""


def whole(name: str, value: Any, least: int) -> int:
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or number < least:
        raise ConfigError(f"{name} is {value!r}: give an integer of at least {least}")
    return number


def within_floats(name: str, number: int) -> int:
    """Return a count or a size, or raise ConfigError for one above `MOST`."""
    if number > MOST:
        raise ConfigError(f"{name}={number}: it must be at most {MOST:,}")
    return number


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
