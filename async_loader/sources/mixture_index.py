"""Splits rows of a mixture's batches by their sources, for what is done by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError
from async_loader.source import Applied
from async_loader.sources.mixture_rows import Array, Ids, numbers_of, own_ids


def split_by_source(
    index: Any, sources: int, values: Mapping[str, Any]
) -> list[tuple[int, Ids, list[Any]]]:
    """Return the number of each source that has rows of ``index``, their ids in it, and their part
    of each of the (nested) values.

    Places of a sequence without a step, -1, are left out; see `in_all`.

    Raises
    ------
    ConfigError
        For rows of other mixtures, and values of another length.
    """
    given = tensors.to_ids(index)
    ids, axes = given.reshape(-1), given.shape
    numbers, parts = numbers_of(ids), []
    for number in np.unique(numbers[ids >= 0]).tolist():
        here = numbers == number
        if number >= sources:
            raise ConfigError(
                f"index {ids[here][0]} is of source {number}, and this mixture has {sources}: "
                "give the index of one of its batches"
            )
        picked = [
            tree.transform(value, partial(_picked, name, here=here, axes=axes))
            for name, value in values.items()
        ]
        parts.append((number, own_ids(ids[here]), picked))
    return parts


def in_all(parts: Sequence[Applied], index: Any) -> Applied:
    """Add up what was applied in each source. Rows that are in no table, those of a negative index,
    count as stale, as they do for tables.
    """
    nowhere = int((tensors.to_ids(index) < 0).sum())
    return Applied(sum(one.applied for one in parts), sum(one.stale for one in parts) + nowhere)


def _picked(name: str, value: Any, here: Array, axes: tuple[int, ...]) -> Any:
    array = tensors.to_array(value)
    if len(axes) > 1 and array.shape[: len(axes)] == axes:
        array = array.reshape(-1, *array.shape[len(axes) :])
    if array.ndim == 0:
        return array
    if len(array) != len(here) and array.size == len(here):
        array = array.reshape(-1)
    if len(array) != len(here):
        raise ConfigError(f"{len(here)} rows, and {name} has {len(array)}: one for each")
    return array[here]
