"""A table's settings and its schema as JSON, and back. Imports nothing that a checkpoint names."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.replay import samplers
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.views import Sequences, Transitions
from async_loader.schema import Field, Schema

_KINDS: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}
_KNOWN: dict[str, Any] = {name: getattr(samplers, name) for name in samplers.__all__}
_KNOWN |= {"Transitions": Transitions, "Sequences": Sequences}


def settings_json(value: object) -> dict[str, Any]:
    """Convert the class of a sampler or a view and its settings to JSON; what cannot be converted,
    to its text.
    """
    try:
        return {"value": _encoded(value)}
    except ConfigError as error:
        return {"text": repr(value), "why": str(error)}


def settings_of(saved: dict[str, Any], role: str) -> Any:
    """Make what `settings_json` has converted.

    Raises
    ------
    ConfigError
        If the class is not one of the package, or has functions: then one has to be passed.
    """
    if "text" in saved:
        raise ConfigError(
            f"the checkpoint was saved with the {role} {saved['text']}, and {saved['why']}: pass "
            f"{role}=..., made as it was then"
        )
    return _decoded(saved["value"])


def _encoded(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(one) for one in value]
    kind = type(value)
    if _KNOWN.get(kind.__name__) is not kind:
        raise ConfigError(f"{kind.__qualname__} is no class that a checkpoint can name")
    names = inspect.signature(kind).parameters
    return {"$class": kind.__name__, **{name: _encoded(getattr(value, name)) for name in names}}


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = value["$class"]
    if kind not in _KNOWN:
        raise ConfigError(
            f"the checkpoint names the class {kind!r}, and this version has none of that name"
        )
    return _KNOWN[kind](**{k: _decoded(one) for k, one in value.items() if k != "$class"})


def limiter_json(limiter: RateLimiter | None) -> Any:
    """Convert a limiter's three numbers to JSON."""
    if limiter is None:
        return None
    return [limiter.min_size_to_sample, limiter.samples_per_insert, limiter.error_buffer]


def limiter_of(saved: Sequence[Any] | None) -> RateLimiter | None:
    """Make the limiter of `limiter_json`."""
    if saved is None:
        return None
    least, ratio, buffer = saved  # which were checked when it was made
    limiter = object.__new__(RateLimiter)
    limiter._set(least, ratio, tuple(buffer) if isinstance(buffer, list) else buffer)
    return limiter


def name_of(saved: object) -> Hashable:
    """Convert the name of a stream back from JSON, see `lasting_json`."""
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
    return [known, list(map(lasting_json, node.keys)), list(map(_node, node.children))]


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
    names = tuple(map(name_of, keys))
    kind = _KINDS.get(known) or collections.namedtuple(
        known.removeprefix("namedtuple "), map(str, names)
    )
    return tree.Node(kind, names, tuple(map(_node_of, children)))
