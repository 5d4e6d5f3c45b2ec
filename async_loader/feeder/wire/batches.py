"""Batches over a socket: in a message as in shared memory, one block after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_loader.batch_layout import BatchLayout, Region
from async_loader.errors import Malformed, SchemaError
from async_loader.feeder.wire.codes import Type
from async_loader.feeder.wire.rows import Column, Framed
from async_loader.feeder.wire.schema_codec import schema_id
from async_loader.schema import Schema

Block = NDArray[np.uint8]


class Batch(Framed, frozen=True):
    """One or more batches, not decoded; the header has the sequence of the first.

    See `BatchForm`.
    """

    TYPE = Type.BATCH


class BatchBlock(NamedTuple):
    """A received batch: its block, its rows, and whether it is alone in its frame."""

    block: Block
    rows: int
    alone: bool


@dataclass(frozen=True, slots=True, eq=False)
class BatchForm:
    """How the batches of one reader are sent.

    Each is a block of arrays ``[batch_size, *shape]``, C order, in the schema's order, each at a
    multiple of 64. A batch of fewer rows fills the first rows of each array.

    Attributes
    ----------
    schema_id : int
        For the header of each message.
    batch_size : int
        Rows.
    layout : BatchLayout
        Of a block.
    bools : tuple of int
        Fields whose bytes have to be 0 or 1.
    """

    schema_id: int
    batch_size: int
    layout: BatchLayout
    bools: tuple[int, ...]

    @classmethod
    def of(cls, schema: Schema, batch_size: int) -> BatchForm:
        """Return the form of a schema. Once per reader. Raises SchemaError if it cannot be sent."""
        bools = tuple(i for i, field in enumerate(schema.fields) if field.dtype.kind == "b")
        return cls(schema_id(schema), batch_size, BatchLayout.contiguous(schema, batch_size), bools)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.layout.nbytes

    def batch(self, columns: Sequence[Column]) -> Batch:
        """Return a batch with copies of ``[rows, *shape]`` arrays, one for each field.

        Raises SchemaError.
        """
        rows = len(columns[0]) if columns else 0
        if not 1 <= rows <= self.batch_size or len(columns) != len(self.layout.regions):
            raise SchemaError(
                f"{len(columns)} columns of {rows} rows, {len(self.layout.regions)} of 1 to "
                f"{self.batch_size} fit"
            )
        block = np.zeros(self.nbytes, np.uint8)
        for region, into, column in zip(
            self.layout.regions, self.layout.views(block), columns, strict=True
        ):
            if column.dtype != region.dtype or column.shape != (rows, *region.shape[1:]):
                text = (
                    f"a column is {column.dtype}{list(column.shape)} where {region.name!r} is "
                    f"{rows} rows of {region.dtype}"
                )
                raise SchemaError(f"{text}{list(region.shape[1:])}")
            into[:rows] = column
        return Batch(rows, [block])

    def blocks(self, body: Batch) -> list[BatchBlock]:
        """Return the batches of a message as views. Reads only bools.

        Raises
        ------
        Malformed
        """
        rows, size = body.rows, self.batch_size
        count = -(-rows // size)
        if not count or (count > 1 and rows % size):
            raise Malformed(
                f"BATCH holds {rows} rows, batches have {size}: send one batch of 1 row or more, "
                "or whole ones"
            )
        frames = [memoryview(frame) for frame in body.frames]
        sizes = [frame.nbytes for frame in frames]
        if sum(sizes) != count * self.nbytes or any(one % self.nbytes or not one for one in sizes):
            text = (
                f"{rows} rows in batches of {size} came in frames of {sizes} bytes, a batch takes "
                f"{self.nbytes}"
            )
            raise Malformed(f"{text}: was a frame cut?")
        found = []
        for frame in frames:
            blocks = np.frombuffer(frame, np.uint8).reshape(-1, self.nbytes)
            for i in self.bools:
                self._check(self.layout.regions[i], blocks, min(rows, size))
            found += [BatchBlock(block, min(rows, size), len(blocks) == 1) for block in blocks]
        return found

    def _check(self, region: Region, blocks: NDArray[np.uint8], rows: int) -> None:
        """Raise Malformed for bytes other than 0 and 1."""
        values = blocks[:, region.offset : region.offset + rows * math.prod(region.shape[1:])]
        if values.size and values.max() > 1:
            raise Malformed(f"field {region.name!r} holds bytes that are neither 0 nor 1")

    def arrays(self, block: Block) -> list[Column]:
        """Return the arrays of one block, as views if it is aligned."""
        return self.layout.views(block if block.ctypes.data % 8 == 0 else block.copy())
