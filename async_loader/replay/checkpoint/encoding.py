"""Streams' names, schemas and states as JSON and back. Reads and writes no file."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.schema import Field, Schema

Array = npt.NDArray[Any]
_ARRAY = "$array"


def names_json(names: Iterable[Hashable]) -> list[Any]:
    """The names of streams.

    Raises
    ------
    ConfigError
        For one that JSON does not hold: streams are found again by their names.
    """
    return [_name(name, name) for name in names]


def _name(value: Any, whole: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if type(value) is tuple:
        return [_name(one, whole) for one in value]
    raise ConfigError(
        f"the stream {whole!r} cannot be saved: name streams by integers, strings, or tuples of these, "
        f"not by {type(value).__name__}"
    )


def name_of(saved: Any) -> Hashable:
    """The inverse of `names_json`, for one of them."""
    return tuple(name_of(one) for one in saved) if isinstance(saved, list) else saved


def schema_json(schema: Schema) -> dict[str, Any]:
    """A schema."""
    fields = [[f.name, list(f.shape), f.dtype.str, f.stack, f.next, f.padding] for f in schema.fields]
    return {"structure": _node(schema.structure), "fields": fields}


def _node(node: tree.Structure) -> Any:
    if node is None:
        return None
    kind = node.kind.__name__
    known = kind if node.kind in (dict, list, tuple) else f"namedtuple {kind}"
    return [known, names_json(node.keys), [_node(child) for child in node.children]]


def schema_of(saved: dict[str, Any]) -> Schema:
    """The inverse of `schema_json`. A namedtuple comes back as one of the same name and fields."""
    fields = [
        Field(name, tuple(shape), np.dtype(dtype), stack, after, padding)
        for name, shape, dtype, stack, after, padding in saved["fields"]
    ]
    return Schema(_node_of(saved["structure"]), tuple(fields))


def _node_of(saved: Any) -> tree.Structure:
    if saved is None:
        return None
    known, keys, children = saved
    names = tuple(name_of(key) for key in keys)
    kind: Any = {"dict": dict, "list": list, "tuple": tuple}.get(known)
    if kind is None:
        kind = collections.namedtuple(known.removeprefix("namedtuple "), names)  # type: ignore[misc]  # noqa: PYI024
    return tree.Node(kind, names, tuple(_node_of(child) for child in children))


def split(state: Any, prefix: str, arrays: dict[str, Array]) -> Any:
    """``state`` as JSON holds it; its arrays go into ``arrays``, as copies, under names that begin with ``prefix``.

    Raises
    ------
    ConfigError
        For anything that is neither an array nor JSON.
    """
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        arrays[prefix] = state.copy()
        return {_ARRAY: prefix}
    if isinstance(state, np.generic):
        return state.item()
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if isinstance(state, list | tuple):
        return [split(one, f"{prefix}/{i}", arrays) for i, one in enumerate(state)]
    if isinstance(state, Mapping) and all(isinstance(key, str) and key != _ARRAY for key in state):
        return {key: split(one, f"{prefix}/{key}", arrays) for key, one in state.items()}
    raise ConfigError(f"{prefix} is {type(state).__name__}, which a checkpoint does not hold: use arrays of numbers and JSON values")


def joined(saved: Any, arrays: Mapping[str, Array]) -> Any:
    """The inverse of `split`."""
    if isinstance(saved, list):
        return [joined(one, arrays) for one in saved]
    if isinstance(saved, dict):
        return arrays[saved[_ARRAY]] if _ARRAY in saved else {key: joined(one, arrays) for key, one in saved.items()}
    return saved
