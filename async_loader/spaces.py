"""Shapes and dtypes of Gymnasium spaces, without importing gymnasium."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from async_loader.errors import SchemaError

_MODULES = ("gymnasium.spaces", "gym.spaces")
_ARRAYS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


class Space(Protocol):
    """The type of a space for type checkers, also if gymnasium is not installed."""

    @property
    def shape(self) -> tuple[int, ...] | None: ...

    def contains(self, x: Any, /) -> bool: ...


def _classes(*names: str) -> tuple[Any, ...]:
    """Return the classes of these names from those packages that are already imported."""
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    return tuple(
        getattr(module, name) for module in modules for name in names if hasattr(module, name)
    )


def is_space(value: object) -> bool:
    """Whether ``value`` is a Gymnasium space of any kind."""
    return isinstance(value, _classes("Space"))


def within(space: object) -> tuple[type, tuple[Any, ...], tuple[Any, ...]] | None:
    """Return container, keys and spaces of a Dict or a Tuple; ``None`` for any other space."""
    if isinstance(space, _classes("Dict")):
        return dict, tuple(space.spaces), tuple(space.spaces.values())
    if isinstance(space, _classes("Tuple")):
        return tuple, tuple(range(len(space.spaces))), tuple(space.spaces)
    return None


def kind_of(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of one value of a space.

    Raises
    ------
    SchemaError
        Names the field if its values are not arrays of one shape.
    """
    if not isinstance(space, _classes(*_ARRAYS)):
        raise SchemaError(
            f"field {name!r} is a {type(space).__name__} space, whose values are not arrays of one "
            f"shape: use {', '.join(_ARRAYS)}, Dict or Tuple, or give the field's shape and dtype, "
            "or leave it out of the observations with a wrapper of the environment"
        )
    return tuple(space.shape), np.dtype(space.dtype)
