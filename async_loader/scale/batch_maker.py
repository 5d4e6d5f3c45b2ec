"""Batches out of the rows of several shards: one array for each field, with ids of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Part(NamedTuple):
    """Rows that follow each other in a message of a shard.

    Attributes
    ----------
    arrays : list of arrays [rows, ...]
        Of the whole message, one for each field of the schema.
    order : int64 array [rows] | None
        In which its rows are taken; ``None``: as they lie.
    start, rows : int
    asked : int
        Number of the batch before which it was asked for.
    server : int
        Of the shard's servers, the one that had the rows.
    """

    arrays: list[Array]
    order: npt.NDArray[np.int64] | None
    start: int
    rows: int
    asked: int
    server: int


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

    def arrays_of(
        self, batch: Mapping[str, Any], schema: Schema, number: int, shard: str
    ) -> list[Array]:
        """Return the arrays of a shard's message, with the shard's number in their ids.

        Raises
        ------
        SchemaError
            Names a field that differs from those of the other shards.
        """
        if schema is not self.schema:
            self._agree(schema, shard)
        arrays = list(tree.leaves(batch, schema.structure))
        for place in self._ids:
            arrays[place] = ids = arrays[place].copy()
            add_source(ids, number)
        return arrays

    def _agree(self, schema: Schema, shard: str) -> None:
        """Take the schema of the first shard, and compare those of others."""
        if self.schema is None:
            names = [field.name for field in schema.fields]
            self.schema, self._of = schema, shard
            self._ids = [names.index("index")]
            if {"mask", "is_first", "step_index"} <= set(names):  # of sequences
                self._ids.append(names.index("step_index"))
            self._weight = names.index("weight") if "weight" in names else None
            return
        ours, theirs = _fields(self.schema), _fields(schema)
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                raise SchemaError(
                    f"field {name!r} is {ours.get(name, 'missing')} in {self._of} and "
                    f"{theirs.get(name, 'missing')} in {shard}: give all shards the same tables"
                )
        if [*ours] != [*theirs]:
            raise SchemaError(f"{self._of} and {shard} have the same fields in another order")

    def batch(self, parts: Sequence[Part], rows: int) -> list[Array]:
        """Return new arrays with the rows of these parts, one for each field."""
        assert self.schema is not None
        arrays = [self._empty(field, rows) for field in self.schema.fields]
        at = 0
        for part in parts:
            into, taken = slice(at, at + part.rows), slice(part.start, part.start + part.rows)
            at += part.rows
            for array, source in zip(arrays, part.arrays, strict=True):
                if part.order is None:
                    array[into] = source[taken]
                else:
                    np.take(source, part.order[taken], axis=0, out=array[into], mode="clip")
        return arrays

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


def _fields(schema: Schema) -> dict[str, str]:
    return {field.name: f"{field.dtype}{list(field.shape)}" for field in schema.fields}
