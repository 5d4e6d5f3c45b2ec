"""Where the fields of n rows are in the frames of a message: arithmetic.

Small fields (below 1024 bytes) share frame 0, packed row by row; each large one has a frame of its
own, C order::

    frame 0   n x [ head of 16 bytes | small fields as PackedRow places them ]
    frame 1.. n x the first large field, n x the second, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from async_loader.errors import Malformed
from async_loader.feeder.wire import bounds
from async_loader.feeder.wire.codes import ErrorCode
from async_loader.feeder.wire.schema_codec import schema_id
from async_loader.schema import Field, PackedRow, Schema

LARGE_BYTES = 1024
"""Part of the format: fields of this size and more have a frame of their own."""
HEAD_BYTES = 16
"""Bytes of a row's head: stream u32, flags u32, priority f64."""
_HEAD = (("stream", "<u4", 0), ("flags", "<u4", 4), ("priority", "<f8", 8))


SLOT_ALIGNMENT = 64
"""Of frames in a slot of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """How rows of a schema are sent.

    Attributes
    ----------
    schema_id : int
        For the header of each message.
    stride : int
        Bytes of one row in frame 0.
    offsets : tuple of (int or None)
        One per field: bytes from the row's start, ``None`` for a large field.
    small, large : tuple of int
        Fields in frame 0, and fields with a frame of their own, in the schema's order.
    bools : tuple of int
        Fields whose bytes have to be 0 or 1.
    frame_bytes : tuple of int
        Of one row, for each frame.
    packed : numpy.dtype
        The record of one row in frame 0; ``f<i>`` is field i.
    """

    fields: tuple[Field, ...]
    schema_id: int
    stride: int
    offsets: tuple[int | None, ...]
    small: tuple[int, ...]
    large: tuple[int, ...]
    bools: tuple[int, ...]
    frame_bytes: tuple[int, ...]
    packed: np.dtype[np.void]

    @classmethod
    def of(cls, schema: Schema) -> RowLayout:
        """Return the layout of a schema. Once per writer.

        Raises
        ------
        SchemaError
            For a schema that cannot be sent.
        """
        fields, number = schema.fields, schema_id(schema)
        small = tuple(i for i, field in enumerate(fields) if field.nbytes < LARGE_BYTES)
        large = tuple(i for i, field in enumerate(fields) if field.nbytes >= LARGE_BYTES)
        row = PackedRow.of(fields[i] for i in small)
        stride = HEAD_BYTES + (row.stride if small else 0)
        places = dict(zip(small, (HEAD_BYTES + offset for offset in row.offsets), strict=True))
        offsets = tuple(places.get(i) for i in range(len(fields)))
        names = [name for name, _, _ in _HEAD] + [f"f{i}" for i in small]
        formats = [form for _, form, _ in _HEAD] + [
            (fields[i].dtype, fields[i].shape) for i in small
        ]
        starts = [start for _, _, start in _HEAD] + [places[i] for i in small]
        packed = np.dtype(
            {"names": names, "formats": formats, "offsets": starts, "itemsize": stride}, align=True
        )
        bools = tuple(i for i, field in enumerate(fields) if field.dtype.kind == "b")
        frame_bytes = (stride, *(fields[i].nbytes for i in large))
        return cls(fields, number, stride, offsets, small, large, bools, frame_bytes, packed)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, over all frames."""
        return sum(self.frame_bytes)

    def sizes(self, rows: int) -> list[int]:
        """Return the bytes of each frame of ``rows`` rows."""
        return [rows * size for size in self.frame_bytes]

    def slot_places(self, rows: int) -> tuple[list[int], int]:
        """Return where each frame of ``rows`` rows begins in a slot of memory, and the bytes of
        all.
        """
        places, end = [], 0
        for size in self.sizes(rows):
            places.append(end)
            end += -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return places, end

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

    def rows_within(self, message_bytes: int = bounds.MESSAGE_BYTES) -> int:
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
