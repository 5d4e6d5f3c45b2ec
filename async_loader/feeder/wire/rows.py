"""Rows of an INSERT, batches, and weights: arrays as frames, and back. Copies only small or
misaligned ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.calls import Buffer
from async_loader.feeder.wire.codes import ErrorCode, Type
from async_loader.feeder.wire.control import Body, TensorSpec
from async_loader.feeder.wire.schema_codec import schema_id
from async_loader.replay.base.row_format import RecordLayout
from async_loader.schema import Schema

Column = NDArray[Any]
Block = NDArray[np.uint8]


class Framed(Body, frozen=True, eq=False):
    """Root of the bodies made of rows. The receiver knows their schema."""

    rows: int
    frames: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        """Bytes, as the windows of writers count them."""
        return sum(memoryview(frame).nbytes for frame in self.frames)


class Insert(Framed, frozen=True):
    """Steps of a writer, not decoded: the header tells a duplicate.

    `read_insert` gives the arrays.
    """

    TYPE = Type.INSERT


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The rows of an INSERT, [rows] each.

    Attributes
    ----------
    streams : uint32
        The writer's stream that each row continues.
    flags : uint32
        TERMINATED, TRUNCATED, FINAL, SHOWN. Of a FINAL row only fields with ``next`` are used.
    priorities : float64
        NaN: the table's default.
    columns : list of arrays [rows, *shape]
        One per field, in the schema's order.
    """

    streams: NDArray[np.uint32]
    flags: NDArray[np.uint32]
    priorities: NDArray[np.float64]
    columns: list[Column]


def read_insert(body: Insert, layout: RowLayout) -> Steps:
    """Return views of the frames, where they are aligned; frames of bytes give read-only arrays.

    Raises
    ------
    Malformed
    """
    rows = body.rows
    if rows < 1:
        raise Malformed("a message of rows has none: send 1 or more")
    frames = [memoryview(frame) for frame in body.frames]
    layout.check(frames, rows)
    packed = _array(frames[0], layout.packed)
    columns: list[Column] = [
        packed[f"f{i}"] if offset is not None else packed for i, offset in enumerate(layout.offsets)
    ]
    for frame, i in zip(frames[1:], layout.large, strict=True):
        field = layout.fields[i]
        columns[i] = _array(frame, field.dtype).reshape(rows, *field.shape)
    for i in layout.bools:
        if (columns[i].view(np.uint8) > 1).any():
            raise Malformed(f"field {layout.fields[i]} holds bytes that are neither 0 nor 1")
    flags, priorities = packed["flags"], packed["priority"]
    _check_heads(flags, priorities)
    return Steps(packed["stream"], flags, priorities, columns)


def _array(frame: memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.frombuffer(frame, dtype)
    return values if values.flags.aligned else values.copy()


def _check_heads(flags: NDArray[np.uint32], priorities: NDArray[np.float64]) -> None:
    seen = int(np.bitwise_or.reduce(flags))
    if seen & ~codes.ROW_FLAGS:
        raise Malformed(
            f"a row has flags {seen & ~codes.ROW_FLAGS:#x}: there are 1 terminated, 2 truncated, 4 "
            "final, 8 shown"
        )
    if seen & codes.SHOWN and (flags & (codes.FINAL | codes.SHOWN) == codes.SHOWN).any():
        raise Malformed("a row that is not final has the flag 8, shown: that is for final rows")
    least, most = np.fmin.reduce(priorities), np.fmax.reduce(priorities)  # NaNs are ignored
    if least < 0 or most == np.inf:
        raise Malformed(
            f"a row has priority {least if least < 0 else most}: it is finite and not negative, or "
            "NaN"
        )


@dataclass(frozen=True, eq=False)
class RowLayout(RecordLayout):
    """How rows of a schema are sent.

    Attributes
    ----------
    schema_id : int
        For the header of each message.
    bools : tuple of int
        Fields whose bytes have to be 0 or 1.
    """

    schema_id: int = 0
    bools: tuple[int, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Self:
        """Return the layout of a schema. Raises SchemaError for one that cannot be sent."""
        number = schema_id(schema)
        bools = tuple(i for i, field in enumerate(schema.fields) if field.dtype.kind == "b")
        return replace(super().of(schema), schema_id=number, bools=bools)

    def check(self, frames: Sequence[memoryview], rows: int) -> None:
        """Raise Malformed unless these are the frames of ``rows`` rows."""
        if len(frames) != len(self.frame_bytes):
            raise Malformed(
                f"rows came in {len(frames)} frames, their schema takes {len(self.frame_bytes)}"
            )
        for i, size in enumerate(self.frame_bytes):
            if frames[i].nbytes != rows * size:
                raise Malformed(
                    f"frame {i} of {rows} rows holds {frames[i].nbytes} bytes, their schema takes "
                    f"{rows * size}"
                )

    def rows_within(self, message_bytes: int = codes.MESSAGE_BYTES) -> int:
        """Return how many rows fit into one message.

        Raises
        ------
        Malformed
            TOO_LARGE, if not one does.
        """
        rows = min(message_bytes // max(1, self.row_bytes), 2**32 - 1)
        if not rows:
            text = (
                f"a row takes {self.row_bytes} bytes, a message {message_bytes}: raise "
                "message_bytes"
            )
            raise Malformed(text, ErrorCode.TOO_LARGE)
        return rows


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
    """

    schema_id: int
    batch_size: int
    layout: BatchLayout

    @classmethod
    def of(cls, schema: Schema, batch_size: int) -> BatchForm:
        """Return the form of a schema. Once per reader. Raises SchemaError if it cannot be sent."""
        return cls(schema_id(schema), batch_size, BatchLayout.contiguous(schema, batch_size))

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.layout.nbytes

    def batch(self, columns: Sequence[Column]) -> Batch:
        """Return a batch with copies of ``[rows, *shape]`` arrays, one for each field."""
        rows, block = len(columns[0]), np.zeros(self.nbytes, np.uint8)
        for into, column in zip(self.layout.views(block), columns, strict=True):
            into[:rows] = column
        return Batch(rows, [block])

    def blocks(self, body: Batch) -> list[BatchBlock]:
        """Return the batches of a message of the feeder as views."""
        found: list[BatchBlock] = []
        for frame in body.frames:
            blocks = np.frombuffer(frame, np.uint8).reshape(-1, self.nbytes)
            for block in blocks:
                rows = min(self.batch_size, body.rows - len(found) * self.batch_size)
                found.append(BatchBlock(block, rows, len(blocks) == 1))
        return found


def specs_of(
    tensors: Mapping[str, NDArray[Any]], bfloat16: Collection[str] = ()
) -> tuple[TensorSpec, ...]:
    """Return the specs in the first part of WEIGHTS or PUBLISH.

    Tensors in ``bfloat16`` are bits, as u16.

    Raises
    ------
    SchemaError
        For a dtype that cannot be sent.
    """
    return tuple(
        TensorSpec(
            name, codes.BFLOAT16 if name in bfloat16 else codes.dtype_code(value.dtype), value.shape
        )
        for name, value in tensors.items()
    )


def bytes_of(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a copy of all tensors."""
    return b"".join(value.tobytes(order="C") for value in tensors.values())


def tensors_of(specs: Iterable[TensorSpec], whole: Buffer) -> dict[str, NDArray[Any]]:
    """Return views of ``whole``, and copies of what is not aligned.

    Raises
    ------
    Malformed
        Unless the tensors fill ``whole``.
    """
    specs, view, at = tuple(specs), memoryview(whole), 0
    total = sum(spec.nbytes for spec in specs)
    if view.nbytes != total:
        raise Malformed(f"the tensors have {total} bytes, {view.nbytes} came: read on from there")
    found = {}
    for spec in specs:
        dtype = codes.TENSOR_DTYPES[spec.dtype]
        part = view[at : at + spec.nbytes]
        value = np.frombuffer(part, dtype) if spec.nbytes else np.empty(0, dtype)
        found[spec.name] = (value if value.flags.aligned else value.copy()).reshape(spec.shape)
        at += spec.nbytes
    return found
