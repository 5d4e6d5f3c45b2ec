"""Records of steps on their way into a table: of one process, or in the messages to a feeder.

# NOTE [records]
A step is checked and packed once, by `StepPacker`, and goes into a row of `Records` as it is. What
is unusual about it (how its episode stands, a priority) is in the record's head, and a final
observation is a record of its own, with the flag FINAL, behind that of its step. One call of the
kernel that writes rows takes as long as ten small steps in it. So a table takes its records many
at a time: `Table.finish`, which every access to the table calls first, under the same lock.
A record counts only when all of it is there.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base.field_table import ARRAY_ADDRESS, ARRAY_STRIDE, NBYTES
from async_loader.replay.base.row_format import FINAL, HEAD, RECORD_HEAD, RecordLayout

Packed = tuple[bytes, tuple[Array, ...]]
"""The small fields of a step or a final observation, as they lie in a record; the large ones."""
Heads = npt.NDArray[np.void]
RAW = np.dtype(f"V{HEAD.itemsize}")
"""Heads as plain bytes: numpy copies structures field by field, which takes five times as long."""


class RowSource(NamedTuple):
    """Records as kernels take them.

    ``fields``: their table of fields, see field_table.py. ``heads``: of the records (not of those
    in blocks), and by the address of the first, with the bytes from head to head. ``per``,
    ``between``: records of a block, and the bytes from block to block.
    """

    fields: Ids
    heads: Heads
    address: int
    apart: int
    per: int
    between: int = 0

    @classmethod
    def of(cls, fields: Ids, heads: Heads) -> RowSource:
        """Return the source of these fields and heads. Keep what the fields lie in."""
        return cls(fields, heads, int(heads.ctypes.data), heads.strides[0], max(1, len(heads)))


class Rows:
    """Many checked records, as columns ``[records, *shape]`` in the order of the schema.

    Attributes
    ----------
    heads : array [records] of HEAD | None
        ``None``: they would say nothing of episodes that the fields do not, and there are no
        priorities. A final observation comes behind its step.
    step_of : int64 array [records] | None
        Which step each record is, or is the final observation of; ``None``: all are steps.
    count, steps : int
        How many records there are, and how many of them are steps.
    """

    __slots__ = ("columns", "count", "heads", "step_of", "steps")

    def __init__(
        self, columns: list[Array], heads: Heads | None = None, step_of: Ids | None = None
    ) -> None:
        self.columns, self.heads, self.step_of = columns, heads, step_of
        self.count = self.steps = len(columns[0])
        if step_of is not None:
            self.steps = int(step_of[-1]) + 1

    def __len__(self) -> int:
        return self.count

    @property
    def are_steps(self) -> Array:
        """Return which records are steps: bool ``[records]``."""
        are = np.ones(len(self), np.bool_)
        return are if self.heads is None else self.heads["flags"] & FINAL == 0

    def prioritize(self, priorities: Floats) -> None:
        """Set the priorities of the steps."""
        if self.heads is None:
            self.heads = plain_heads(len(self))
        self.heads["priority"][self.are_steps] = priorities

    def of(self, streams: Array) -> Heads:
        """Set the streams, a number for each step. Return the heads."""
        heads = self.heads = plain_heads(len(self)) if self.heads is None else self.heads
        heads["stream"] = streams if self.step_of is None else streams.take(self.step_of)
        return heads


def plain_heads(count: int) -> Heads:
    """Return heads of steps within their episodes, without priorities."""
    heads = np.zeros(count, HEAD)
    heads["priority"] = np.nan
    return heads


def finals_of(heads: Heads) -> int:
    """Return how many records are not steps."""
    return int(np.count_nonzero(heads["flags"] & FINAL))


@functools.cache
def _pack_into(nbytes: int) -> Callable[..., None]:
    """Return what writes the head of a record, and ``nbytes`` of small fields."""
    return struct.Struct(f"<IId{nbytes}s").pack_into


class Records:
    """Records that are gathered. Under the lock of their table or writer.

    Parameters
    ----------
    layout : RecordLayout
    capacity : int
        Records that there is memory for.
    frames : sequence of memoryview, optional
        That memory, as `RecordLayout` divides it.

    Attributes
    ----------
    count : int
        Records that are there.
    first, single : int, bool
        Of a table: the id of the first one; whether these are gathered, rather than `Batches`.
    limit : int
        Records with which it is full; for a table, from which on it is to take them.
    heads : array [capacity] of HEAD
    views : list of arrays [capacity, *shape]
        The fields, in the order of the schema.
    """

    __slots__ = (
        "_raw", "capacity", "count", "first", "frames", "heads", "large", "layout", "limit",
        "memory", "pack_into", "single", "size", "views",
    )  # fmt: skip

    def __init__(
        self,
        layout: RecordLayout,
        capacity: int,
        frames: Sequence[Any] | None = None,
    ) -> None:
        self.layout = layout
        self.count, self.first, self.single = 0, 0, True
        self.capacity = self.limit = capacity
        # zeros: gaps between fields are sent too
        self.frames = (
            [bytearray(nbytes) for nbytes in layout.sizes(capacity)] if frames is None else frames
        )
        packed = np.frombuffer(self.frames[0], layout.packed)
        self._raw = np.ndarray((capacity,), RAW, self.frames[0], strides=(layout.stride,))
        self.heads: Heads = np.ndarray((capacity,), HEAD, self.frames[0], strides=(layout.stride,))
        large = {
            i: np.frombuffer(frame, layout.fields[i].dtype).reshape(
                capacity, *layout.fields[i].shape
            )
            for frame, i in zip(self.frames[1:], layout.large, strict=True)
        }
        self.views: list[Array] = [
            large[i] if offset is None else packed[f"f{i}"]
            for i, offset in enumerate(layout.offsets)
        ]
        self.large = list(large.values())
        self.memory = memoryview(self.frames[0])
        self.pack_into = _pack_into(layout.stride - RECORD_HEAD)
        self.size = layout.stride

    def put(self, packed: Packed, stream: int, flags: int, priority: float) -> None:
        """Add a packed step or final observation."""
        at, (small, large) = self.count, packed
        if large:
            for column, value in zip(self.large, large, strict=True):
                column[at] = value
        self.pack_into(self.memory, at * self.size, stream, flags, priority, small)
        self.count = at + 1

    def put_rows(self, rows: Rows, first: int, count: int) -> None:
        """Add ``count`` of many checked records, from ``first`` on; they have heads."""
        assert rows.heads is not None
        place, part = slice(self.count, self.count + count), slice(first, first + count)
        for view, column in zip(self.views, rows.columns, strict=True):
            view[place] = column[part]
        self._raw[place] = rows.heads[part].view(RAW)
        self.count += count

    @property
    def finals(self) -> int:
        """How many records are not steps."""
        return finals_of(self.heads[: self.count])


class Batches:
    """Memory for batches of ``rows`` records, ``most`` of these in all.

    A batch lies there field after field behind its heads, so that one call copies all its columns.

    Parameters
    ----------
    fields : int64 array [fields, 5]
        Of the table; see field_table.py.

    Attributes
    ----------
    memory : memoryview
        ``row_bytes`` for each record.
    source : RowSource
    """

    __slots__ = ("memory", "most", "row_bytes", "rows", "source")

    def __init__(self, fields: Ids, rows: int, most: int) -> None:
        sizes = fields[:, NBYTES]
        blocks = most // rows
        self.rows, self.most = rows, blocks * rows
        self.row_bytes = HEAD.itemsize + int(sizes.sum())
        between = rows * self.row_bytes
        memory = np.zeros(blocks * between, np.uint8)
        self.memory = memory.data
        base = int(memory.ctypes.data)
        fields = fields.copy()
        fields[:, ARRAY_ADDRESS] = base + rows * (np.cumsum(sizes) - sizes + HEAD.itemsize)
        fields[:, ARRAY_STRIDE] = sizes
        heads: Heads = np.ndarray(
            (blocks, rows), HEAD, memory.data, strides=(between, HEAD.itemsize)
        )
        self.source = RowSource(fields, heads, base, HEAD.itemsize, rows, between)
