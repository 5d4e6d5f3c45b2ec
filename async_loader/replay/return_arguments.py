"""Checks of what views of n-step returns are given."""

from __future__ import annotations

from typing import Any

from async_loader.errors import ConfigError
from async_loader.validation import within_floats


def check_return(n_steps: Any, gamma: Any, reward: Any) -> None:
    """Raise ConfigError for fewer than 1 step, a gamma outside of 0 to 1, and what is no name of a
    field.
    """
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 1:
        raise ConfigError(
            f"n_steps={n_steps!r}: the number of steps that a return sums up is a Python int, "
            "1 or more"
        )
    within_floats("n_steps", n_steps)
    if isinstance(gamma, bool | str) or not hasattr(gamma, "__float__") or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma={gamma!r}: a discount is 0 to 1")
    check_field_name("reward", reward)


def check_field_name(parameter: str, name: Any) -> None:
    """Raise ConfigError for what is no name of a field."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{parameter}={name!r}: it is the name of a field, as in {parameter!r}")
