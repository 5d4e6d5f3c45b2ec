"""The user's function of a whole batch, as workers and the loader's own threads call it.

Allocates nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.names import describe
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.source import Seed, finishes


class Transform:
    """Calls the function with arrays that it may write into.

    Parameters
    ----------
    function : callable
        ``f(batch) -> batch``. If it has a parameter ``rng``, it is given a numpy Generator, which
        draws the same numbers for the same batch in any process or thread.
    first : callable | None
        Called with the batch before the function: see `async_loader.source.Finishing`.
    """

    def __init__(
        self, function: Callable[..., Any], first: Callable[[Any], Any] | None = None
    ) -> None:
        self._function, self._first = function, first
        self._takes_rng = _has_parameter(function, "rng")

    @classmethod
    def of(
        cls, source: object, function: Callable[..., Any] | None, collated: bool
    ) -> Transform | None:
        """Return what is called with each batch of a source; ``None``: nothing.

        Raises
        ------
        ConfigError
            If a collate_fn, which is given samples, comes before a source's own function.
        """
        first = finishes(source)
        if first is not None and collated:
            raise ConfigError(
                "collate_fn= is given samples of one length, and whole='ragged' makes batches "
                "without padding: say transform=..., which is given the whole batch, or whole=True"
            )
        if function is None:
            return None if first is None else cls(first)
        return cls(function, first)

    @staticmethod
    def arrays(batch: object) -> Any:
        """The batch with tensors as arrays, and arrays that may not be written copied."""
        return tree.transform(batch, _writable, leave=is_ignored)

    def __call__(self, arrays: object, seed: Seed) -> Any:
        """What the function returns, with numbers in dicts as arrays without dimensions.

        Raises
        ------
        SchemaError
            If that is None: it has changed the batch and forgotten to return it.
        BaseException
            What the function raises.
        """
        function = self._function
        arrays = arrays if self._first is None else self._first(arrays)
        if self._takes_rng:
            result = function(arrays, rng=np.random.default_rng(seed))
        else:
            result = function(arrays)
        if result is None:
            raise SchemaError(
                f"transform {describe(function)} returned None for batch {seed[1]}: return the "
                "batch, also where it was changed in place"
            )
        return _without_numbers(result)


def _without_numbers(value: Any) -> Any:
    if type(value) in (dict, tree.Fields):
        return {
            key: one if is_ignored(key) else _without_numbers(one) for key, one in value.items()
        }
    if type(value) not in (bool, int, float, complex):
        return value
    array = np.asarray(value)
    return value if array.dtype == object else array  # an int of more than 64 bits


def _writable(leaf: object) -> Any:
    array = tensors.as_array(leaf)
    if array is None:
        return leaf
    return array if array.flags.writeable else array.copy()


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False
