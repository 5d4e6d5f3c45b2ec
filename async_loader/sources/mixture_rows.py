"""The rows of a mixture: which source each comes from, by its index, and their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.schema import Schema

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]

SOURCE_BIT = 56
"""Higher bits of an index are the number of the source. Bits 48 to 55 are for the number of a
feeder's server, see `async_loader.feeder.client.batch_structure`.
"""
MOST_SOURCES = 1 << 63 - SOURCE_BIT
_OWN = (1 << SOURCE_BIT) - 1
_DEFAULTS: dict[str, tuple[type[np.generic], float]] = {
    "weight": (np.float32, 1.0),
    "redelivered": (np.bool_, False),
}
"""Fields that some sources add to their rows, and the values for rows of the others."""


def numbers_of(index: Ids) -> Ids:
    """Return the number of each row's source."""
    numbers: Ids = index >> SOURCE_BIT
    return numbers


def own_ids(index: Ids) -> Ids:
    """Return the ids as the rows' sources gave them; negative ones, which are no rows, stay so."""
    ids: Ids = np.where(index < 0, index, index & _OWN)
    return ids


def add_source(ids: Ids, number: int) -> None:
    """Write the number of their source into ids, in place; -1 stays -1.

    Raises
    ------
    ConfigError
        For ids with bits of their own in that place.
    """
    if len(ids) and (ids.max() > _OWN or ids.min() < -1):
        raise ConfigError(
            f"source {number} of the mixture gives the index {ids.max()}: the upper "
            f"{64 - SOURCE_BIT} bits are the number of the source, ids must be below {_OWN:,}"
        )
    if number:
        np.add(ids, number << SOURCE_BIT, out=ids, where=ids >= 0)


class MixedSchema:
    """What the batches of several sources have in common.

    Parameters
    ----------
    schemas : sequence of Schema
        Of the rows of each source.
    names : sequence of str
        Of the sources, for errors.
    sequences : sequence of bool
        Whether rows of each source are sequences, whose ``step_index`` holds ids too.

    Attributes
    ----------
    schema : Schema
        The first source's fields, then ``index``, and ``weight`` and ``redelivered`` if one of them
        has these.

    Raises
    ------
    ConfigError
        Names the first field that differs.
    """

    def __init__(
        self, schemas: Sequence[Schema], names: Sequence[str], sequences: Sequence[bool]
    ) -> None:
        first = _without_added(schemas[0], names[0])
        for schema, name in zip(schemas[1:], names[1:], strict=True):
            _check_alike(first, _without_added(schema, name), names[0], name)
        made = first.with_field("index", np.int64)
        for field, (dtype, _) in _DEFAULTS.items():
            if any(field in _names(schema) for schema in schemas):
                made = made.with_field(field, dtype)
        self.schema = made
        places = {name: place for place, name in enumerate(_names(self.schema))}
        self._places = [[places[name] for name in _names(schema)] for schema in schemas]
        self._defaults = [
            [(places[name], _DEFAULTS[name][1]) for name in (places.keys() & _DEFAULTS) - found]
            for found in (set(_names(schema)) for schema in schemas)
        ]
        self._ids = [
            [places[name] for name in ("index", "step_index")[: 1 + one]] for one in sequences
        ]

    def write(self, number: int, into: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Write rows of a source, one array for each field of its own schema."""
        for place, array in zip(self._places[number], arrays, strict=True):
            into[place][...] = array
        for place, value in self._defaults[number]:
            into[place][...] = value
        for place in self._ids[number]:
            add_source(into[place], number)


def _names(schema: Schema) -> list[str]:
    return [field.name for field in schema.fields]


def _without_added(schema: Schema, name: str) -> Schema:
    root = schema.structure
    if root is None or root.kind is not dict or "index" not in root.keys:
        raise ConfigError(
            f"{name}: its rows have no index, by which a mixture tells them apart: give a table or "
            "a dict of columns"
        )
    added = {"index", *_DEFAULTS}
    kept = [i for i, key in enumerate(root.keys) if key not in added]
    node = tree.Node(dict, tuple(root.keys[i] for i in kept), tuple(root.children[i] for i in kept))
    return Schema(node, tuple(field for field in schema.fields if field.name not in added))


def _check_alike(first: Schema, other: Schema, name: str, other_name: str) -> None:
    ours, theirs = ({f.name: (f.shape, f.dtype) for f in one.fields} for one in (first, other))
    for field in [*ours, *theirs]:
        if ours.get(field) != theirs.get(field):
            kinds = (
                f"{k[1]}{list(k[0])}" if k else "not" for k in (ours.get(field), theirs.get(field))
            )
            raise ConfigError(
                f"field {field!r} is {next(kinds)} in {name}, and {next(kinds)} in {other_name}: "
                "give both the same fields, by the schema or by table.source(view=...)"
            )
