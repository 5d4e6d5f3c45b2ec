"""Rows of an INSERT: arrays as frames, and back. Copies only small or misaligned ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.codes import ErrorCode, Type
from async_loader.feeder.wire.data import Buffer, Data
from async_loader.feeder.wire.schema_codec import schema_id
from async_loader.replay.base.record_layout import RecordLayout
from async_loader.schema import Schema

Column = NDArray[Any]
_SLOT = struct.Struct("<II")


class Framed(Data, frozen=True):
    """Root of the bodies made of rows. The receiver knows their schema."""

    rows: int
    frames: Sequence[Buffer]

    @property
    def count(self) -> int:
        return self.rows

    @property
    def nbytes(self) -> int:
        """Bytes, as the windows of writers count them."""
        return sum(memoryview(frame).nbytes for frame in self.frames)

    def pack(self) -> list[Buffer]:
        return list(self.frames)


class Insert(Framed, frozen=True):
    """Steps of a writer, not decoded: the header tells a duplicate.

    `read_insert` gives the arrays.
    """

    TYPE = Type.INSERT


class SlotInsert(Data, frozen=True):
    """An INSERT whose rows lie in a slot of the writer's memory; the header has the flag SHARED.

    ``capacity``: the rows that the frames in the slot have room for.
    """

    TYPE = Type.INSERT
    rows: int
    slot: int
    capacity: int

    @property
    def count(self) -> int:
        return self.rows

    def pack(self) -> list[Buffer]:
        return [_SLOT.pack(self.slot, self.capacity)]


def slot_insert(rows: int, frames: Sequence[memoryview]) -> SlotInsert:
    """Return the INSERT of these frames. Raises Malformed."""
    if len(frames) != 1 or frames[0].nbytes != _SLOT.size:
        raise Malformed(
            f"INSERT of a slot has {sum(frame.nbytes for frame in frames)} bytes in {len(frames)} "
            f"body frames, it takes {_SLOT.size} in 1"
        )
    slot, capacity = _SLOT.unpack(frames[0])
    if rows > capacity:
        raise Malformed(f"INSERT of {rows} rows names a slot of {capacity}")
    return SlotInsert(rows, slot, capacity)


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
