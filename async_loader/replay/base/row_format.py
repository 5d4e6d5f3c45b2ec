"""Rows of a table, records of steps on their way into one, and the numbers that kernels and Python
share: words and flags of heads, the geometry.

Every packed row begins with a head of four 8-byte words::

    id + 1 of the step; 0: the row is empty
    id of the step before in its episode; -1 at its start, or see NOTE [next episodes]
    id of the step after; -1: none yet, or see NOTE [next episodes]
    flags

# NOTE [next episodes]
Where an episode has ended, the id after its last row, and the one before the first row of the
stream's next episode, link the two as ``-2 - id``: both stay negative, which says that the episode
has no step there. `neighbour_of` reads them. In LAST it is the same: ``-2 - id`` is the last row of
the stream's last episode, which has ended. A stream that the table has forgotten meanwhile begins
without such a link (see streams.py, NOTE [streams]).

# NOTE [records in memory]
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

HEAD_BYTES = 32
ID, PREV, NEXT, FLAGS = 0, 8, 16, 24
"""Offsets of the words.

The upper half of the last is a version, odd while the row is being patched.
"""

TERMINATED = 1
"""The episode ended with this step: its value is its reward."""
TRUNCATED = 2
"""The episode was cut off after this step: its value includes that of the next observation."""
FINAL = 4
"""Not a step: the observation after an episode's last step."""
ENDS = TERMINATED | TRUNCATED
"""Flags that end an episode."""
DELETED = 8
"""Of a row in the table: it never holds an item again."""
SHOWN = 8
"""Of a FINAL row on its way in that ends an episode: it holds the observation after the last step.
No row of a table has this flag, so that it may share its bit with DELETED."""
AWAITS = 16
"""The final observation of the episode is in the next row of the stream."""
VERSION_ONE = 1 << 32

# Positions in the geometry, an int64 array with what kernels know about a table.
BASE = 0  # address of row 0
STRIDE = 1  # bytes from row to row
ROWS = 2
CAPACITY = 3  # steps that are live at most
DEPTH = 4  # steps that an item shows: itself and those before it in its stacks
LOOKAHEAD = 5  # steps that must follow before a step is an item
ORDERED = 6  # 1: rows are overwritten in order; 0: whichever the remover chose
CURSOR = 7  # the next id in order
COUNT = 8  # items
TOP = 9  # rows that were ever used
# Addresses of arrays with one entry per row, private to the table's process.
ALIVE = 10  # uint8: whether there is an item
GIVEN_UP = 11  # steps that waited for their successors when `room` needed their rows
DIRTY = 12  # uint8: whether the row changed since the last save
# float64: the priority that a step came with, NaN without one; negative, that it was given later. 0
# where the table has no priorities
GIVEN = 13
NAMES = 17  # int64: the id of the step, -1 without one; as in the heads, closer together
# Other arrays of the table's process.
LAST = 14  # int64 [streams]: the last step of the open episode; negative without one
BORN = 15  # int64 [rows of a burst]: new items
DIED = 16  # int64: ended items
# The fields that tell how episodes end, to be set later; 0 for fields that the schema lacks.
TERMINATED_FIELD = 18  # address in row 0, bytes from row to row, bytes, the bytes of "yes"
TRUNCATED_FIELD = 22
FOLLOWED = 26  # 1: steps show the observation after them
DONE_FIELD = 28  # as TERMINATED_FIELD
# 1: a step's end fields say themselves that it ends its episode, beside the flags in its head; 0:
# they are no whole numbers, and all is in the head
TELLING = 32
# The oldest id that `room` found in use: no earlier row is still needed.
TAIL = 33
# int64: deleted steps whose turn to become items has come, and the last steps of episodes that
# ended later than their step was added; 0 where no sampler asks for them
PASSED = 34
PLACES = 35

LARGE_BYTES = 1024
"""Fields of this size and more have a frame of their own."""
FLAGS_AT, PRIORITY_AT, RECORD_HEAD = 4, 8, 16
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
        stride = RECORD_HEAD + (row.stride if small else 0)
        places = dict(zip(small, (RECORD_HEAD + offset for offset in row.offsets), strict=True))
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
