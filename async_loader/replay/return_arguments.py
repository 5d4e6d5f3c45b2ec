"""Checks of the arguments of views."""

from __future__ import annotations

from typing import Any

from async_loader.errors import ConfigError
from async_loader.validation import within_floats


def steps(name: str, value: Any, least: int = 1) -> int:
    """Return a number of steps, or raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: it is a Python int, {least} or more")
    return within_floats(name, value)


def share(name: str, value: Any, what: str) -> None:
    """Raise ConfigError for what is no number from 0 to 1. ``what``: what it is."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__") or not 0 <= value <= 1:
        raise ConfigError(f"{name}={value!r}: {what} is 0 to 1")


def field_name(parameter: str, name: Any) -> None:
    """Raise ConfigError for what is no name of a field."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{parameter}={name!r}: it is the name of a field, as in {parameter!r}")


def check_return(n_steps: Any, gamma: Any, reward: Any) -> None:
    """Raise ConfigError for what makes no return."""
    steps("n_steps", n_steps)
    share("gamma", gamma, "a discount")
    field_name("reward", reward)
