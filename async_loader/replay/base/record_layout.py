"""Where the fields of records are: of steps on their way into a table.

A record is a head of 16 bytes and the small fields (below 1024 bytes), as PackedRow places them.
Each large field has a frame of its own, C order::

    frame 0   n x [ head | small fields ]
    frame 1.. n x the first large field, n x the second, ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from async_loader.schema import Field, PackedRow, Schema

LARGE_BYTES = 1024
"""Fields of this size and more have a frame of their own."""
FLAGS_AT, PRIORITY_AT, HEAD_BYTES = 4, 8, 16
"""Offsets in a head, which begins with the number of a stream; its bytes."""
HEAD = np.dtype([("stream", "<u4"), ("flags", "<u4"), ("priority", "<f8")])
_ALIGNMENT = 64
"""Of frames in one memory."""


@dataclass(frozen=True, eq=False)
class RecordLayout:
    """Where the fields of a schema's records are: arithmetic.

    Attributes
    ----------
    stride : int
        Bytes of one record in frame 0.
    offsets : tuple of (int or None)
        One per field: bytes from the record's start, ``None`` for a large field.
    small, large : tuple of int
        Fields in frame 0, and fields with a frame of their own, in the schema's order.
    frame_bytes : tuple of int
        Of one record, for each frame.
    packed : numpy.dtype
        One record in frame 0; ``f<i>`` is field i.
    """

    fields: tuple[Field, ...]
    stride: int
    offsets: tuple[int | None, ...]
    small: tuple[int, ...]
    large: tuple[int, ...]
    frame_bytes: tuple[int, ...]
    packed: np.dtype[np.void]

    @classmethod
    def of(cls, schema: Schema) -> Self:
        """Return the layout of a schema."""
        fields = schema.fields
        small = tuple(i for i, field in enumerate(fields) if field.nbytes < LARGE_BYTES)
        large = tuple(i for i, field in enumerate(fields) if field.nbytes >= LARGE_BYTES)
        row = PackedRow.of(fields[i] for i in small)
        stride = HEAD_BYTES + (row.stride if small else 0)
        places = dict(zip(small, (HEAD_BYTES + offset for offset in row.offsets), strict=True))
        heads = [(name, *HEAD.fields[name]) for name in HEAD.names]  # type: ignore[index,union-attr]
        listed = [
            *heads,
            *((f"f{i}", (fields[i].dtype, fields[i].shape), places[i]) for i in small),
        ]
        names, formats, starts = (list(one) for one in zip(*listed, strict=True))
        packed = np.dtype(
            {"names": names, "formats": formats, "offsets": starts, "itemsize": stride}, align=True
        )
        offsets = tuple(places.get(i) for i in range(len(fields)))
        frame_bytes = (stride, *(fields[i].nbytes for i in large))
        return cls(fields, stride, offsets, small, large, frame_bytes, packed)

    @property
    def row_bytes(self) -> int:
        """Bytes of one record, over all frames."""
        return sum(self.frame_bytes)

    def sizes(self, rows: int) -> list[int]:
        """Return the bytes of each frame of ``rows`` records."""
        return [rows * size for size in self.frame_bytes]

    def slot_places(self, rows: int) -> tuple[list[int], int]:
        """Return where each frame of ``rows`` records begins in one memory, and the bytes of
        all.
        """
        places, end = [], 0
        for size in self.sizes(rows):
            places.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return places, end
