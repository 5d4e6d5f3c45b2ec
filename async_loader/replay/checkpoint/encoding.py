"""Streams' names, schemas and states as JSON, and back."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.replay.stream_names import lasting_json
from async_loader.schema import Field, Schema

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
        [f.name, list(f.shape), f.dtype.str, f.stack, f.next, f.padding, f.codec]
        for f in schema.fields
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
            codec=codec,
            name=name,
        )
        for name, shape, dtype, stack, after, padding, codec in saved["fields"]
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
