"""The rows of a mixture: which source each comes from, by its index, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.schema import Schema
from async_loader.source import Reader, Seed, Window
from async_loader.sources.columns import SchemaReader

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


def join_words(index: Ids, number: int) -> Ids:
    """Return the rows of one source as rows of a plan of the mixture: int64 ``[rows, 2 + words]``.

    The index with its source, the number of words that follow (0: the source's index has one
    axis), and these.
    """
    flat = index.reshape(len(index), -1)
    words = flat.shape[1] - 1 if index.ndim > 1 else 0
    joined = np.empty((len(index), 2 + words), np.int64)
    joined[:, 0], joined[:, 1], joined[:, 2:] = flat[:, 0], words, flat[:, 1:]
    add_source(joined[:, 0], number)
    return joined


def stacked(parts: Sequence[Ids]) -> Ids:
    """Return the rows of several `join_words` below each other."""
    whole = np.zeros((sum(map(len, parts)), max(part.shape[1] for part in parts)), np.int64)
    at = 0
    for part in parts:
        whole[at : at + len(part), : part.shape[1]] = part
        at += len(part)
    return whole


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
        self._complete(number, into)

    def read(
        self, number: int, reader: Reader, index: Ids, into: Sequence[Array], seed: Seed
    ) -> None:
        """Read rows of a source; ``index`` as `join_words` makes it."""
        words = int(index[0, 1])
        own = own_ids(index[:, 0])
        if words:
            own = np.concatenate((own[:, None], index[:, 2 : 2 + words]), axis=1)
        fields = [into[place] for place in self._places[number]]
        reader.read(own, Window(fields), (*seed, number))
        self._complete(number, into)

    def _complete(self, number: int, into: Sequence[Array]) -> None:
        for place, value in self._defaults[number]:
            into[place][...] = value
        for place in self._ids[number]:
            add_source(into[place], number)


class MixtureReader(SchemaReader):
    """Reads the rows of several sources: each by the source's own reader.

    Threads: one at a time.

    Parameters
    ----------
    readers : sequence of Reader
        Of each source; all have schemas.
    mixed : MixedSchema
    """

    def __init__(self, readers: Sequence[Reader], mixed: MixedSchema) -> None:
        self._readers, self._mixed = tuple(readers), mixed

    @property
    def schema(self) -> Schema:
        """Of the mixture's rows."""
        return self._mixed.schema

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """Fill ``into`` with rows of several sources: see `Reader.read`."""
        for number, rows in runs(index[:, 0]):
            fields = [array[rows] for array in into.fields]
            self._mixed.read(number, self._readers[number], index[rows], fields, seed)


def runs(index: Ids) -> Iterator[tuple[int, slice]]:
    """Return the source and the place of rows of one source that follow each other."""
    numbers = numbers_of(index)
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(cuts):
        if stop > start:
            yield int(numbers[start]), slice(start, stop)


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
