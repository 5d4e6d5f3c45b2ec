"""The rows of one message, written straight into the frames that are sent.

# NOTE [the hot path]
A step within an episode, of a schema that is not nested, is checked while it is written:
`RowBuffer.put_step`. It counts only when all of it was written, so a step that does not fit leaves
nothing. All other steps are checked first (`RowPacker.row`) and written then (`RowBuffer.put`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from async_loader import tree
from async_loader.feeder.client.insert_memory import LEAST_BYTES, InsertMemory, InsertSlot
from async_loader.feeder.wire import FINAL, Insert, RowLayout, SlotInsert
from async_loader.schema import Field, Schema

Array = npt.NDArray[Any]
_NAN = float("nan")
_CODES = {
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q",
    "u8": "Q", "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
"""The `struct` code of one value of a field, by dtype."""


class StructRowWriter:
    """Writes a step of a flat schema into a row, and checks types and shapes only.

    See NOTE [the hot path].

    Attributes
    ----------
    fields : list of tuples
        The packed fields in the order of the row, then the large ones: key in the step; dtype and
        shape of an array; accepted types of a number; frame of a large field, 0 for others.
    packed : struct.Struct | None
        The packed row: stream, flags, priority, then the small fields. ``None`` if this schema
        cannot be packed so.
    """

    __slots__ = ("fields", "packed")

    def __init__(self, schema: Schema, layout: RowLayout) -> None:
        self.packed: struct.Struct | None = None
        self.fields: list[
            tuple[str, np.dtype[Any], tuple[int, ...] | None, tuple[type, ...], int]
        ] = []
        root = schema.structure
        if not isinstance(root, tree.Node) or root.kind is not dict or any(root.children):
            return
        form, at = "<IId", 16
        # a field without elements begins where the next one does
        placed = sorted((layout.offsets[i] or 0, schema.fields[i].nbytes, i) for i in layout.small)
        for offset, _, i in placed:
            field = schema.fields[i]
            code = f"{field.nbytes}s" if field.shape else _CODES.get(field.dtype.str[1:])
            if code is None:
                return
            form, at = f"{form}{offset - at}x{code}", offset + field.nbytes
            self.fields.append((root.keys[i], field.dtype, field.shape or None, _numbers(field), 0))
        for frame, i in enumerate(layout.large, 1):
            self.fields.append(
                (root.keys[i], schema.fields[i].dtype, schema.fields[i].shape, (), frame)
            )
        self.packed = struct.Struct(f"{form}{layout.stride - at}x")


def _numbers(field: Field) -> tuple[type, ...]:
    """Return the types whose values this field can take; `struct` checks the value itself."""
    kinds: dict[str, type] = {"f": float, "i": int, "u": int, "b": bool}
    return (
        ()
        if field.shape or field.dtype.kind not in kinds
        else (kinds[field.dtype.kind], field.dtype.type)
    )


class RowBuffer:
    """A message that is being filled. One thread at a time.

    Attributes
    ----------
    count, capacity : int
        Rows in it, and rows that its memory holds.
    limit : int
        Rows with which it is full.
    finals : int
        Rows that are final observations, not steps.
    slot : InsertSlot | None
        Memory that the feeder reads from, and in which the rows lie.
    """

    __slots__ = (
        "_columns", "_flags", "_frames", "_layout", "_packed", "_priority", "_raw", "_row_writer",
        "_seen", "_streams", "capacity", "count", "finals", "limit", "slot", "views",
    )  # fmt: skip

    def __init__(
        self,
        layout: RowLayout,
        capacity: int,
        row_writer: StructRowWriter,
        slot: InsertSlot | None = None,
    ) -> None:
        self.count, self.finals, self.capacity, self.slot = 0, 0, capacity, slot
        self.limit = capacity
        self._layout, self._row_writer = layout, row_writer
        self._frames: list[Any] = _frames(layout, capacity, slot)
        self._raw = np.frombuffer(self._frames[0], np.uint8).reshape(capacity, layout.stride)
        packed = np.frombuffer(self._frames[0], layout.packed)
        self._packed = memoryview(self._frames[0])
        self._streams, self._flags, self._priority = (
            packed["stream"],
            packed["flags"],
            packed["priority"],
        )
        fields = layout.fields
        self._columns = [
            np.frombuffer(frame, fields[i].dtype).reshape(capacity, *fields[i].shape)
            for frame, i in zip(self._frames[1:], layout.large, strict=True)
        ]
        large = dict(zip(layout.large, self._columns, strict=True))
        self.views: list[Array] = [
            large[i] if offset is None else packed[f"f{i}"]
            for i, offset in enumerate(layout.offsets)
        ]
        self._seen: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of the full buffer."""
        return self.capacity * self._layout.row_bytes

    def emptied(self) -> RowBuffer:
        """Empty the buffer and return it. Its rows must be acknowledged."""
        self.count, self.finals, self.limit = 0, 0, self.capacity
        self._seen.clear()
        return self

    def put_step(self, step: dict[str, Any], stream: int, priority: float | None) -> bool:
        """Add a step within its episode.

        Return False, and add nothing, if it needs a full check.
        """
        row_writer, at = self._row_writer, self.count
        if row_writer.packed is None or len(step) != len(row_writer.fields):
            return False
        values = []
        for key, dtype, shape, numbers, frame in row_writer.fields:
            value: Any = step.get(key)
            if type(value) is np.ndarray:
                if value.dtype is not dtype or value.shape != shape:
                    return False
                if frame:
                    self._columns[frame - 1][at] = value
                    continue
                value = value.tobytes()
            elif not isinstance(value, numbers):
                return False
            values.append(value)
        try:
            row_writer.packed.pack_into(
                self._packed,
                at * row_writer.packed.size,
                stream,
                0,
                _NAN if priority is None else priority,
                *values,
            )
        except (struct.error, OverflowError):  # a number that does not fit
            return False
        self._seen.add(stream)
        self.count = at + 1
        return True

    def put(self, values: Sequence[Any], stream: int, flags: int, priority: float | None) -> None:
        """Add a checked step."""
        self._write(self.count, values, stream, flags, priority)
        self.count += 1

    def put_last(
        self, values: Sequence[Any], stream: int, flags: int, priority: float | None,
        which: Iterable[int], final: Iterable[Any],
    ) -> None:  # fmt: skip
        """Add an episode's last step and the observation after it; if interrupted, neither."""
        self._write(self.count, values, stream, flags, priority)
        self._write_final(self.count + 1, which, final, stream, FINAL)
        self.finals += 1
        self.count += 2

    def put_final(
        self, which: Iterable[int], values: Iterable[Any], stream: int, flags: int = FINAL, *,
        ends: int = 0,
    ) -> None:  # fmt: skip
        """Add a row that is not a step; ``ends`` are flags set on the step right before it."""
        at = self.count
        self._write_final(at, which, values, stream, flags)
        if ends:
            self._flags[at - 1] = ends
        self.finals += 1
        self.count = at + 1

    def ends_in(self, stream: int) -> bool:
        """Return whether the newest row is a step of this stream within its episode."""
        at = self.count - 1
        return at >= 0 and bool(self._streams[at] == stream) and not self._flags[at]

    def _write(
        self, at: int, values: Sequence[Any], stream: int, flags: int, priority: float | None
    ) -> None:
        for view, value in zip(self.views, values, strict=True):
            view[at] = value
        self._streams[at], self._flags[at], self._priority[at] = (
            stream,
            flags,
            _NAN if priority is None else priority,
        )
        self._seen.add(stream)

    def _write_final(
        self, at: int, which: Iterable[int], values: Iterable[Any], stream: int, flags: int
    ) -> None:
        self._raw[at] = 0
        for column in self._columns:
            column[at] = 0
        for i, value in zip(which, values, strict=True):
            self.views[i][at] = value
        self._streams[at], self._flags[at], self._priority[at] = stream, flags, _NAN
        self._seen.add(stream)

    def put_rows(self, rows: CheckedRows, first: int, count: int) -> None:
        """Add ``count`` of many checked rows."""
        to, of = slice(self.count, self.count + count), slice(first, first + count)
        for view, column in zip(self.views, rows.columns, strict=True):
            view[to] = column[of]
        streams = rows.streams[of]
        self._streams[to], self._flags[to], self._priority[to] = (
            streams,
            rows.flags[of],
            rows.priorities[of],
        )
        self._seen.update(
            streams[:1].tolist() if (streams == streams[0]).all() else np.unique(streams).tolist()
        )
        self.finals += rows.finals(first, count)
        self.count += count

    def sealed(self) -> InsertPayload:
        """Return the payload.

        A full buffer, and one that fills a slot in part, is not copied: refill it only once it is
        acknowledged.
        """
        n, layout = self.count, self._layout
        frames, nbytes = self._frames, n * layout.row_bytes
        buffer: RowBuffer | None = self
        if n < self.capacity:
            sizes = layout.sizes(n)
            frames = [memoryview(one)[:size] for one, size in zip(frames, sizes, strict=True)]
            if self.slot is None or nbytes < LEAST_BYTES:
                frames, buffer = [zmq.Frame(one, copy=True) for one in frames], None
        return InsertPayload(Insert(n, frames), nbytes, self.finals, frozenset(self._seen), buffer)


def _frames(layout: RowLayout, capacity: int, slot: InsertSlot | None) -> list[Any]:
    """Return memory for each frame."""
    sizes = layout.sizes(capacity)
    if slot is None:  # zeros: gaps between fields are sent too
        return [zmq.Frame(bytes(nbytes), copy=True) for nbytes in sizes]
    places, _ = layout.slot_places(capacity)
    frames = [slot.view[place : place + size] for place, size in zip(places, sizes, strict=True)]
    frames[0][:] = bytes(sizes[0])
    return frames


@dataclass(slots=True, eq=False)
class InsertPayload:
    """An INSERT that is kept until it is acknowledged.

    Attributes
    ----------
    finals : int
        Rows that are not steps.
    streams : frozenset of int
        Streams that it continues.
    buffer : RowBuffer | None
        The buffer that holds its rows; ``None`` if they were copied out.
    over_socket : bool
        Whether its rows were sent, not only the number of their slot.
    """

    insert: Insert
    nbytes: int
    finals: int
    streams: frozenset[int]
    buffer: RowBuffer | None
    over_socket: bool = False

    def in_slot(self, memory: InsertMemory) -> SlotInsert | None:
        """Return the INSERT that names the slot of its rows; ``None`` if the feeder has no such
        slot.
        """
        slot = None if self.buffer is None else self.buffer.slot
        if self.buffer is None or slot is None or not memory.has(slot):
            return None
        return SlotInsert(self.insert.rows, slot.number, self.buffer.capacity)


@dataclass(slots=True, eq=False)
class CheckedRows:
    """Many checked rows, final observations in between."""

    columns: list[Array]
    streams: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint32]
    priorities: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.streams)

    def ended(self) -> list[int]:
        """Return the streams whose last row here ends an episode."""
        last = len(self) - 1 - np.unique(self.streams[::-1], return_index=True)[1]
        return [int(one) for one in self.streams[last[self.flags[last] != 0]]]

    def finals(self, first: int, count: int) -> int:
        """Return how many of these rows are not steps."""
        return int(np.count_nonzero(self.flags[first : first + count] & FINAL))
