"""Batches out of the rows of several shards: one array for each field, with ids of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import SchemaError
from async_loader.schema import Field, Schema
from async_loader.shm.array_pool import ArrayPool
from async_loader.sources.mixture_rows import Array, add_source

_LARGE = 64 << 10
"""Bytes of an array from which on its memory comes from a pool."""


@dataclass(slots=True, eq=False)
class Chunk:
    """What one message of a shard had.

    Attributes
    ----------
    arrays : list of arrays [rows, ...]
        One for each field of the schema.
    order : int64 array [rows] | None
        In which its rows are taken; ``None``: as they lie.
    asked : int
        Number of the batch before which it was asked for.
    server : int
        Of the shard's servers, the one that had the rows.
    lease : object
    number : int
        Of the chunk, in the order in which the shard gave them.
    settled : dict of int
        Rows that were used, by the first one of each part.
    """

    arrays: list[Array]
    rows: int
    order: npt.NDArray[np.int64] | None
    asked: int
    server: int
    lease: object = None
    number: int = 0
    settled: dict[int, int] = field(default_factory=dict)


class Part(NamedTuple):
    """Rows that follow each other in a chunk: those of one batch, or those that no batch has."""

    chunk: Chunk
    start: int
    rows: int


class BatchMaker:
    """Copies rows of shards into batches. Thread rule: that of `Source.plan`.

    Attributes
    ----------
    schema : Schema | None
        Of the rows of all shards; ``None`` before the first ones.
    """

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._of = ""
        self._arrays = ArrayPool()
        self._ids: list[int] = []
        self._weight: int | None = None

    def agree(self, schema: Schema, shard: str) -> None:
        """Take the schema of the first shard, and compare those of others.

        Raises
        ------
        SchemaError
            Names a field that differs.
        """
        if self.schema is None:
            names = [field.name for field in schema.fields]
            self.schema, self._of = schema, shard
            self._ids = [names.index("index")]
            if {"mask", "is_first", "step_index"} <= set(names):  # of sequences
                self._ids.append(names.index("step_index"))
            self._weight = names.index("weight") if "weight" in names else None
            return
        ours, theirs = _fields(self.schema), _fields(schema)
        if ours == theirs:
            return
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                raise SchemaError(
                    f"field {name!r} is {_text(ours, name)} in {self._of} and "
                    f"{_text(theirs, name)} in {shard}: give all shards the same tables"
                )
        raise SchemaError(f"{self._of} and {shard} have the same fields in another order")

    def batch(self, parts: Sequence[Part], rows: int) -> list[Array]:
        """Return new arrays with the rows of these parts, one for each field."""
        assert self.schema is not None
        arrays = [self._empty(field, rows) for field in self.schema.fields]
        at = 0
        for part in parts:
            into = slice(at, at + part.rows)
            at += part.rows
            chunk, taken = part.chunk, slice(part.start, part.start + part.rows)
            if chunk.order is None:
                for array, source in zip(arrays, chunk.arrays, strict=True):
                    array[into] = source[taken]
            else:
                order = chunk.order[taken]
                for array, source in zip(arrays, chunk.arrays, strict=True):
                    np.take(source, order, axis=0, out=array[into], mode="clip")
        return arrays

    def number(self, arrays: list[Array], shard: int) -> None:
        """Put ids with the shard's number in the place of a chunk's. Once for all its rows."""
        for place in self._ids:
            arrays[place] = ids = arrays[place].copy()
            add_source(ids, shard)

    def weight_of(self, arrays: Sequence[Array]) -> Array | None:
        """Return the weights of a batch, if its rows have any."""
        return None if self._weight is None else arrays[self._weight]

    def nested(self, arrays: Sequence[Array]) -> Mapping[str, Any]:
        """Return a batch nested as steps are."""
        assert self.schema is not None
        made: Mapping[str, Any] = tree.rebuild_batch(self.schema.structure, arrays)
        return made

    def _empty(self, field: Field, rows: int) -> Array:
        if rows * field.nbytes >= _LARGE:
            return self._arrays.array((rows, *field.shape), field.dtype)
        return np.empty((rows, *field.shape), field.dtype)


def _fields(schema: Schema) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {field.name: (field.shape, field.dtype) for field in schema.fields}


def _text(fields: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], name: str) -> str:
    if name not in fields:
        return "missing"
    shape, dtype = fields[name]
    return f"{dtype}{list(shape)}"
