"""Checks and converts the arguments of a table's methods."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.schema import END_FIELDS, RESERVED, Field, Schema, kind_of, tops_of
from async_loader.validation import MOST, check_ids, path_of, whole

TAKEN = (*RESERVED, "priority", "timeout_s", "final_obs")
"""Names that a field of a step cannot have: batches contain them, or `ReplayBuffer.add` has such
keywords.
"""

_INT64 = np.dtype(np.int64)
_UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def positive(name: str, value: object) -> int:
    """Return ``value`` as an int from 1 to `MOST`. Raises ConfigError."""
    if type(value) is int and 0 < value <= MOST:
        return value
    return whole(name, value, 1)


def size_of(capacity: object, max_bytes: object) -> tuple[int | None, int | None]:
    """Return the most steps and the most bytes, one of which may be ``None``.

    ``capacity`` may be either.
    """
    if isinstance(capacity, str):
        if max_bytes is not None:
            raise ConfigError(f"capacity={capacity!r} and max_bytes={max_bytes!r}: give bytes once")
        return None, bytes_of("capacity", capacity)
    return positive("capacity", capacity), None if max_bytes is None else bytes_of(
        "max_bytes", max_bytes
    )


def folder_of(disk: object) -> str | None:
    """Return the folder on whose disk a table lies; ``None``: in memory. Raises ConfigError."""
    if disk is None:
        return None
    name = path_of("disk", disk)
    if not os.path.isdir(name):
        raise ConfigError(f"disk={name!r} is no folder: make it first")
    return os.path.abspath(name)


def kept_in(keep: object, disk: object) -> str | None:
    """Return the folder that keeps a table; ``None``: memory that goes with its process."""
    if keep is None or keep == "memory":
        return None
    if disk is not None:
        raise ConfigError(f"keep={keep!r} and disk={disk!r}: give the folder once, as keep")
    return os.path.abspath(path_of("keep", keep))


def bytes_of(name: str, value: object) -> int:
    """Convert a size to bytes: an int, or text with a unit (B; KB, MB, GB, TB of 1000; KiB, MiB,
    GiB, TiB of 1024).

    Raises ConfigError, also for text of digits alone: where a number counts steps it would mean
    something else.
    """
    if not isinstance(value, str):
        return positive(name, value)
    found = re.fullmatch(r"\s*([0-9]+|[0-9]*\.[0-9]+|[0-9]+\.)\s*([A-Za-z]*)\s*", value)
    if found is not None and not found[2]:
        raise ConfigError(
            f"{name}={value!r} has no unit: text is bytes, as in '{found[1]}B' or '8GiB'; a count "
            "is a plain number"
        )
    if found is None or found[2].upper() not in _UNITS:
        raise ConfigError(
            f"{name}={value!r}: a size is a number and a unit, as in '8GiB' or '500MB'"
        )
    return positive(name, int(min(float(found[1]), 2.0 * MOST) * _UNITS[found[2].upper()]))


def one_of(given: Mapping[str, Any] | None, fields: dict[str, Any], what: str) -> Mapping[str, Any]:
    """Return a step or batch that was given either as a dict or as keywords."""
    if given is None:
        return fields
    if fields:
        raise SchemaError(
            f"a {what} and the fields {sorted(fields)} as well: pass one or the other"
        )
    if type(given) is dict:
        return given
    if not isinstance(given, Mapping):
        raise SchemaError(
            f"a {what} is a dict of fields, not {type(given).__name__}: give a dict, or name the "
            "fields, as in obs=..."
        )
    return _of_tensordict(given, what) if hasattr(given, "batch_size") else given


def _of_tensordict(given: Any, what: str) -> Mapping[str, Any]:
    """Convert a TensorDict to a dict: it is a Mapping by its base class, and iterates over its
    rows.
    """
    rows = tuple(given.batch_size)
    if what == "step" and rows:
        raise SchemaError(
            f"a TensorDict of batch_size {list(rows)} is not one step: extend() adds its rows"
        )
    if what != "step" and len(rows) != 1:
        remedy = "add() adds one step" if not rows else ".reshape(-1) makes one row of each step"
        raise SchemaError(
            f"a TensorDict of batch_size {list(rows)} is not a batch [rows]: {remedy}"
        )
    as_dict: Mapping[str, Any] = given.to_dict()
    return as_dict


def storable(schema: Schema) -> Schema:
    """Return ``schema`` if a table can store its steps. Raises SchemaError."""
    root = schema.structure
    if root is None or root.kind is not dict:
        raise SchemaError(
            "a step is a dict of fields: name what you store, as in add(obs=...), and in a schema "
            "{'obs': env.observation_space, 'action': env.action_space, 'reward': 'float32', "
            "'terminated': 'bool'}"
        )
    strange = [key for key in root.keys if not isinstance(key, str)]
    if strange:
        raise SchemaError(f"a step has the key {strange[0]!r}: fields are named by strings")
    if listed := _list_in(root):
        raise SchemaError(
            f"field {listed!r} is a list: np.asarray for an array, a tuple or a dict for several "
            "fields"
        )
    taken = [name for name in TAKEN if name in root.keys]
    if taken:
        raise SchemaError(
            f"a step has the field {taken[0]!r}: {', '.join(TAKEN)} are reserved names, choose "
            "another"
        )
    _check_names(schema)
    for field in schema.fields:
        if field.scope != "step":
            raise SchemaError(
                f"field {field.name!r} has scope={field.scope!r}: steps have no groups, `Rollouts` "
                "has"
            )
        if field.name in END_FIELDS and math.prod(field.shape) != 1:
            raise SchemaError(
                f"field {field.name!r} has shape {list(field.shape)}: it ends the episode, so it "
                "is one value for each step; give what ends for a part of a step (an agent, a "
                "head, a rollout in one row) another name"
            )
    return schema


def _check_names(schema: Schema) -> None:
    """Raise SchemaError for two fields that are called alike, as "a.b" and a field b within a."""
    names = [field.name for field in schema.fields]
    for field, top in zip(schema.fields, tops_of(schema), strict=True):
        if field.next is not None:
            names.append(field.next + field.name[len(top) :])
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(
            f"field {twice[0]!r} is there more than once, with nested fields and those that next= "
            "names: give every field a name of its own"
        )


def _list_in(structure: tree.Structure, name: str = "") -> str | None:
    """Return the name of the first list in a structure: ``[1, 2, 3]`` is hardly meant as three
    fields.
    """
    if structure is None:
        return None
    if structure.kind is list:
        return name
    below = (
        _list_in(child, f"{name}.{key}".strip("."))
        for key, child in zip(structure.keys, structure.children, strict=True)
    )
    return next(filter(None, below), None)


def schema_of_columns(batch: Mapping[str, Any]) -> Schema:
    """Return the schema of one row of a batch, after checking it: a table keeps its schema."""
    structure = tree.structure_of(batch)
    fields = []
    columns = list(tree.leaves(batch, structure))
    for name, value in zip(tree.names(structure), columns, strict=True):
        kind = kind_of(value)
        if kind is None or not kind[0]:
            raise SchemaError(f"field {name!r} is {tensors.unheld(value) or _no_rows(value)}")
        fields.append(Field(kind[0][1:], kind[1], name=name))
    schema = Schema(structure, tuple(fields))
    length_of(schema, columns)
    return schema


def _no_rows(value: object) -> str:
    return (
        f"{type(value).__name__}, not an array or tensor [rows, ...]: np.asarray for lists, add() "
        "for one step"
    )


def count_of(batch: Mapping[str, Any]) -> int:
    """Return the rows of the first column that has any. Checks nothing."""
    first = next(iter(batch.values()), None)
    if type(first) is np.ndarray and first.ndim:
        return len(first)
    for leaf in tree.leaves(batch, tree.structure_of(batch)):
        with contextlib.suppress(TypeError):
            return len(leaf)
    return 0


def length_of(schema: Schema, columns: Sequence[Any]) -> int:
    """Return the rows of a batch. Raises SchemaError for columns of unequal length."""
    if len(set(map(len, columns))) > 1:
        lengths = {
            field.name: len(column) for field, column in zip(schema.fields, columns, strict=False)
        }
        raise SchemaError(
            f"columns of unequal length: {lengths}: give every field one value per row"
        )
    return len(columns[0]) if columns else 0


def ids_of(index: object) -> Ids:
    """Convert ids to a contiguous, writable int64 array: any other would have kernels compiled
    again.
    """
    if (
        type(index) is np.ndarray
        and index.dtype == _INT64
        and index.ndim == 1
        and index.flags.carray
    ):
        return index  # as in a batch
    array = array_of(index, "index")
    if array.size == 0:
        return np.empty(0, np.int64)
    check_ids(array)
    if array.ndim > 1:
        raise ConfigError(
            f"ids have shape {list(array.shape)}: they are [rows], as a batch's `index` is; use "
            ".reshape(-1)"
        )
    return np.require(np.atleast_1d(array), np.int64, ("C", "A", "W"))


def floats_of(values: object, name: str) -> Floats:
    """Convert numbers to a new float64 array ``[rows]``, whatever their shape, as ``[rows, 1]`` of
    a network.
    """
    array = reals_of(values, name)
    return (array if array.ndim == 1 else array.reshape(-1)).astype(np.float64)


def reals_of(values: object, name: str) -> Array:
    """Convert numbers to an array. Raises ConfigError for what is no real numbers."""
    array = values if type(values) is np.ndarray else array_of(values, name)
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{name} is {array.dtype}: it must be real numbers")
    return array


def one_float(value: object, name: str) -> Floats:
    """Convert one number to a float64 array ``[1]``.

    Raises ConfigError, also for NaN, which stands for "not given".
    """
    if type(value) is not float:  # an int may have more digits than a float
        array = array_of(value, name)
        if array.ndim or array.dtype.kind not in "biuf":
            raise ConfigError(f"{name}={value!r}: it is one number for a step")
        value = array.item()
    if value != value:
        raise ConfigError(
            f"{name} is NaN: priorities are finite, 0 or more; leave it out for a step without one"
        )
    return np.full(1, value, np.float64)


def array_of(values: object, name: str) -> Array:
    """Convert a value to an array. Raises ConfigError."""
    array = tensors.as_array(values)
    if array is not None:
        return array
    if (text := tensors.unheld(values)) is not None:
        raise ConfigError(f"{name} is {text}")
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is not an array of numbers: {error}") from None


def named(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and the values of nested fields."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from named(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def per_step(priority: object, items: int) -> bool:
    """Return whether these are errors ``[items, time]``, rather than one priority for each item."""
    errors = tensors.as_array(priority)
    return errors is not None and errors.ndim > 1 and len(errors) == items and errors.size != items


def one_axis(index: object, fields: Mapping[str, Any]) -> tuple[Ids, dict[str, Any]]:
    """Return ids and values of fields along one axis; those of sequences are ``[rows, time]`` and
    ``[rows, time, ...]``.

    A place without a step, whose id is -1, is no step of the table. Raises what `ids_of` raises,
    and SchemaError for values of other axes.
    """
    array = tensors.as_array(index)
    if array is None or array.ndim < 2:
        return ids_of(index), dict(fields)
    axes = array.shape

    def flat(value: Any) -> Any:
        values = tensors.as_array(value)
        if values is None or values.shape[: len(axes)] != axes:
            shape = "no array" if values is None else f"of shape {list(values.shape)}"
            raise SchemaError(
                f"the index is {list(axes)} and a value is {shape}: give one for each id, "
                f"[{', '.join(map(str, axes))}, ...]"
            )
        return values.reshape(-1, *values.shape[len(axes) :])

    return ids_of(array.reshape(-1)), {
        name: tree.transform(value, flat) for name, value in fields.items()
    }


def per_item(priority: object, items: int, eta: float) -> object:
    """Return one priority for each item: errors ``[items, time]`` become ``eta * max + (1 - eta) *
    mean`` of each sequence (Kapturowski et al. 2019, section 2.3), without those that are NaN.
    """
    errors = tensors.as_array(priority)
    if errors is None or not per_step(errors, items):
        return priority
    errors = errors.reshape(items, -1).astype(np.float64)
    there = ~np.isnan(errors)
    if not there.any(axis=1).all():
        row = int(np.flatnonzero(~there.any(axis=1))[0])
        raise ConfigError(f"priority {row}: every error of its sequence is NaN, give one at least")
    largest = np.max(errors, axis=1, where=there, initial=-np.inf)
    lowest = np.min(errors, axis=1, where=there, initial=np.inf)
    mixed = eta * largest + (1 - eta) * np.mean(errors, axis=1, where=there)
    return np.where(lowest < 0, lowest, mixed)  # which is refused as a priority
