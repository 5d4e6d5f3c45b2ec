"""Rows that one shard has drawn and no batch has taken yet, and batches of rows of all shards.

# NOTE [age of rows]
A shard draws ahead: rows that come now were asked for when the chunk ``ahead`` chunks before was
taken, or later: when the shard was opened again. A shard with few rows is asked seldom, and what it
drew would wait for many batches, while its rows and priorities change. So rows that were asked for
more than ``most_age`` batches ago are dropped, and drawn anew; as many as a single feeder may have
ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import SchemaError
from async_loader.feeder.client.batch_structure import SERVER_BITS, BatchStructure
from async_loader.feeder.client.source import RemoteSource
from async_loader.scale.connections import ShardConnection
from async_loader.schema import Field, Schema
from async_loader.shm.array_pool import ArrayPool
from async_loader.source import Ready
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
    weight : int | None
        The place of the weights among the arrays of a batch, if its rows have any.
    ids : list of int
        The places of ids.
    """

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._arrays = ArrayPool()
        self.ids: list[int] = []
        self.weight: int | None = None

    def arrays_of(
        self, batch: Mapping[str, Any], structure: BatchStructure, shard: ShardConnection
    ) -> list[Array]:
        """Return the arrays of a shard's message, with the shard's number in their ids.

        Raises
        ------
        SchemaError
            The tables of the shards differ.
        """
        schema = structure.shown
        if self.schema is None:
            names = [field.name for field in schema.fields]
            self.schema, self.ids = schema, structure.ids
            self.weight = names.index("weight") if "weight" in names else None
        elif schema != self.schema:
            raise SchemaError(
                f"{shard.name} has rows of {schema}, and another shard of {self.schema}: give all "
                "shards the same tables"
            )
        arrays = list(tree.leaves(batch, schema.structure))
        for place in self.ids:
            arrays[place] = ids = arrays[place].copy()
            add_source(ids, shard.number)
        return arrays

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

    def nested(self, arrays: Sequence[Array]) -> Mapping[str, Any]:
        """Return a batch nested as steps are."""
        assert self.schema is not None
        made: Mapping[str, Any] = tree.rebuild_batch(self.schema.structure, arrays)
        return made

    def _empty(self, field: Field, rows: int) -> Array:
        if rows * field.nbytes >= _LARGE:
            return self._arrays.array((rows, *field.shape), field.dtype)
        return np.empty((rows, *field.shape), field.dtype)


class ShardRows:
    """Draws rows from one shard. Thread rule: that of `Source.plan`.

    Parameters
    ----------
    shard : ShardConnection
    source : RemoteSource
        Of the shard's table.
    chunk : int
        Rows of a message.
    most_age : float
        In batches. See NOTE [age of rows].
    shuffle : Generator, optional
        For another order of rows than that of a message, where that says something of them.

    Attributes
    ----------
    held : int
        Rows that are here, and in no batch.
    """

    def __init__(
        self,
        shard: ShardConnection,
        source: RemoteSource,
        chunk: int,
        most_age: float,
        shuffle: np.random.Generator | None = None,
    ) -> None:
        self.shard, self.source, self.chunk, self.most_age = shard, source, chunk, most_age
        self.held, self._shuffle = 0, shuffle
        self._parts: deque[Part] = deque()  # in the shard's order
        self._asked: deque[int] = deque()  # when each chunk that has not come was asked for

    def fill(self, count: int, batch: int, maker: BatchMaker) -> bool:
        """Take what has arrived until ``count`` rows are there; return whether they are."""
        while self._parts and self._is_old(self._parts[0], batch):
            self.held -= self._parts.popleft().rows
        while len(self._asked) < self.source.ahead:
            self._asked.append(batch)
        while self.held < count:
            plan = self.source.draw_now(self.chunk)
            if not isinstance(plan, Ready):
                return False
            asked = self._asked.popleft() if self._asked else batch
            self._asked.append(batch)
            server = int(plan.batch["index"].reshape(-1)[0]) >> SERVER_BITS
            part = Part([], None, 0, 0, asked, server)
            if self._is_old(part, batch):
                continue
            arrays = self.arrays_of(plan, maker)
            rows = len(arrays[0])
            order = None if self._shuffle is None else self._shuffle.permutation(rows)
            self._parts.append(part._replace(arrays=arrays, order=order, rows=rows))
            self.held += rows
        return True

    def arrays_of(self, plan: Ready, maker: BatchMaker) -> list[Array]:
        """Return the arrays of a message, with ids of the cluster. Raises SchemaError."""
        structure = self.source.structure
        assert structure is not None
        return maker.arrays_of(plan.batch, structure, self.shard)

    def take(self, count: int) -> list[Part]:
        """Take the next ``count`` rows, which are there."""
        parts = []
        self.held -= count
        while count:
            part = self._parts.popleft()
            if part.rows > count:
                rest = part._replace(start=part.start + count, rows=part.rows - count)
                self._parts.appendleft(rest)
                part = part._replace(rows=count)
            parts.append(part)
            count -= part.rows
        return parts

    def drop(self) -> None:
        """Drop all rows: they are drawn anew."""
        self._parts.clear()
        self.held = 0

    def close(self, timeout_s: float) -> None:
        """Close the source. Raises Timeout if the shard does not answer."""
        limit = timeout_s if self.shard.is_open else 0.0
        if self.source.leased:
            self.source.release(limit)
        self.source.close(limit)

    def _is_old(self, part: Part, batch: int) -> bool:
        """Whether rows were asked for long ago, or were lost with their server."""
        return batch - part.asked > self.most_age or part.server != self.shard.connection.servers
