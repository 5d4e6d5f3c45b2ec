"""Streams' names, schemas and states as JSON, and back."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array
from async_loader.replay.stream_names import lasting_json
from async_loader.schema import Field, Schema

_ARRAY = "$array"
_KINDS: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}


def names_json(names: Iterable[Hashable]) -> list[Any]:
    """Convert the names of streams to JSON.

    Raises
    ------
    ConfigError
        For one that JSON does not hold: streams are found again by their names.
    """
    return [lasting_json(name) for name in names]


def name_of(saved: object) -> Hashable:
    """Convert one name of `names_json` back."""
    return tuple(name_of(one) for one in saved) if isinstance(saved, list) else saved


def schema_json(schema: Schema) -> dict[str, Any]:
    """Convert a schema to JSON."""
    fields = [
        [f.name, list(f.shape), f.dtype.str, f.stack, f.next, f.padding, *filter(None, [f.codec])]
        for f in schema.fields  # without a codec as earlier versions have it
    ]
    return {"structure": _node(schema.structure), "fields": fields}


def _node(node: tree.Structure) -> Any:
    if node is None:
        return None
    kind = node.kind.__name__
    known = kind if node.kind in (dict, list, tuple) else f"namedtuple {kind}"
    return [known, names_json(node.keys), [_node(child) for child in node.children]]


def schema_of(saved: dict[str, Any]) -> Schema:
    """Convert a schema of `schema_json` back. A namedtuple becomes one of
    the same name and fields.
    """
    fields = [
        Field(
            tuple(shape),
            np.dtype(dtype),
            stack=stack,
            next=after,
            padding=padding,
            codec=codec[0] if codec else None,
            name=name,
        )
        for name, shape, dtype, stack, after, padding, *codec in saved["fields"]
    ]
    return Schema(_node_of(saved["structure"]), tuple(fields))


def _node_of(saved: Sequence[Any] | None) -> tree.Structure:
    if saved is None:
        return None
    known, keys, children = saved
    names = tuple(name_of(key) for key in keys)
    below = tuple(_node_of(child) for child in children)
    if known in _KINDS:
        return tree.Node(_KINDS[known], names, below)
    return tree.Node(
        collections.namedtuple(known.removeprefix("namedtuple "), map(str, names)), names, below
    )


class Copies(dict[str, Array]):
    """Copies of arrays by name, made into memory that was allocated before.

    Allocating takes longer than copying, and copies are made under the table's lock.

    Parameters
    ----------
    like : mapping of str to array
        What is likely to be copied.
    """

    def __init__(self, like: Mapping[str, Array]) -> None:
        super().__init__()
        self._room = {
            name: np.zeros(array.nbytes + array.nbytes // 8 + 4096, np.uint8)
            for name, array in like.items()
        }
        for room in self._room.values():
            room.fill(1)  # pages of zeros are allocated only when they are written

    def add(self, name: str, array: Array) -> None:
        """Add a copy of ``array``."""
        room = self._room.get(name)
        if room is None or room.nbytes < array.nbytes:
            self[name] = array.copy()
            return
        self[name] = room[: array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(self[name], array)


def split(state: object, prefix: str, arrays: Copies) -> Any:
    """Convert a state to JSON.

    Its arrays are copied into ``arrays``, under names that begin with ``prefix``.

    Raises
    ------
    ConfigError
        For anything that is neither an array nor JSON.
    """
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        arrays.add(prefix, state)
        return {_ARRAY: prefix}
    if isinstance(state, np.generic):
        return state.item()
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if isinstance(state, list | tuple):
        return [split(one, f"{prefix}/{i}", arrays) for i, one in enumerate(state)]
    if isinstance(state, Mapping) and all(isinstance(key, str) and key != _ARRAY for key in state):
        return {key: split(one, f"{prefix}/{key}", arrays) for key, one in state.items()}
    raise ConfigError(
        f"{prefix} is {type(state).__name__}, which a checkpoint does not hold: use arrays of "
        "numbers and JSON values"
    )


def joined(saved: object, arrays: Mapping[str, Array]) -> Any:
    """Join what `split` has separated."""
    if isinstance(saved, list):
        return [joined(one, arrays) for one in saved]
    if isinstance(saved, dict):
        return (
            arrays[saved[_ARRAY]]
            if _ARRAY in saved
            else {key: joined(one, arrays) for key, one in saved.items()}
        )
    return saved
