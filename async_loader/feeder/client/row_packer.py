"""Steps as the rows of a message: checked as a table checks them, written straight to where they travel. Sends nothing.

NOTE [the hot path]. A step within an episode, of a schema that is not nested, is checked while it is written:
`RowBuffer.put_step`.
It counts only when all of it was, so what does not fit leaves nothing. All others, and what needs a closer look, are checked
first (`RowPacker.row`) and written then (`RowBuffer.put`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.feeder.client.frame_memory import blank, copied
from async_loader.feeder.wire import FINAL, TERMINATED, TRUNCATED, Insert, RowLayout
from async_loader.replay.arguments import floats_of, one_float
from async_loader.replay.samplers import priority_rules
from async_loader.replay.table.episode_ends import Ends
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import StorageLayout
from async_loader.schema import Field, Schema

Array = npt.NDArray[Any]
_ENDS = TERMINATED | TRUNCATED
_NAN = float("nan")
_CODES = {
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
"""What `struct` calls one value of a field."""


class StructRowWriter:
    """How a step of a flat schema is written into a row, unchecked but for types and shapes. See NOTE [the hot path].

    Attributes
    ----------
    fields : list of tuples
        Of those in the packed row, as they lie there, then of the others: the key at the top of a step; the dtype and shape of an
        array; else the types of a number; which frame a large field has, 0 for others.
    packed : struct.Struct | None
        The packed row: stream, flags, priority, then the small fields. ``None``: there is none for this schema.
    """

    __slots__ = ("fields", "packed")

    def __init__(self, schema: Schema, layout: RowLayout) -> None:
        self.packed: struct.Struct | None = None
        self.fields: list[tuple[str, np.dtype[Any], tuple[int, ...] | None, tuple[type, ...], int]] = []
        root = schema.structure
        if not isinstance(root, tree.Node) or root.kind is not dict or any(root.children):
            return
        form, at = "<IId", 16
        for i in sorted(layout.small, key=lambda i: layout.offsets[i] or 0):
            field, offset = schema.fields[i], layout.offsets[i]
            assert offset is not None
            code = f"{field.nbytes}s" if field.shape else _CODES.get(field.dtype.str[1:])
            if code is None:
                return
            form, at = f"{form}{offset - at}x{code}", offset + field.nbytes
            self.fields.append((root.keys[i], field.dtype, field.shape or None, _numbers(field), 0))
        for frame, i in enumerate(layout.large, 1):
            self.fields.append((root.keys[i], schema.fields[i].dtype, schema.fields[i].shape, (), frame))
        self.packed = struct.Struct(f"{form}{layout.stride - at}x")


def _numbers(field: Field) -> tuple[type, ...]:
    """Types of which one value can be this field; whether the value itself fits is for `struct` to say."""
    kinds: dict[str, type] = {"f": float, "i": int, "u": int, "b": bool}
    return () if field.shape or field.dtype.kind not in kinds else (kinds[field.dtype.kind], field.dtype.type)


class RowBuffer:
    """A message that is being filled. One thread at a time.

    Attributes
    ----------
    count, most : int
        Rows in it, and at how many it is full.
    finals : int
        Rows that are no steps.
    """

    __slots__ = ("_columns", "_flags", "_frames", "_layout", "_packed", "_priority", "_raw", "_seen", "_streams", "_way", "count",
                 "finals", "most", "views")  # fmt: skip

    def __init__(self, layout: RowLayout, most: int, way: StructRowWriter) -> None:
        self.count, self.finals, self.most = 0, 0, most
        self._layout, self._way = layout, way
        self._frames = [blank(most * nbytes) for nbytes in layout.frame_bytes]  # zeros: what lies between fields is sent too
        self._raw = np.frombuffer(self._frames[0], np.uint8).reshape(most, layout.stride)
        packed = np.frombuffer(self._frames[0], layout.packed)
        self._packed = memoryview(self._frames[0])
        self._streams, self._flags, self._priority = packed["stream"], packed["flags"], packed["priority"]
        fields = layout.fields
        self._columns = [
            np.frombuffer(frame, fields[i].dtype).reshape(most, *fields[i].shape)
            for frame, i in zip(self._frames[1:], layout.large, strict=True)
        ]
        large = dict(zip(layout.large, self._columns, strict=True))
        self.views: list[Array] = [large[i] if offset is None else packed[f"f{i}"] for i, offset in enumerate(layout.offsets)]
        self._seen: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Of all its rows."""
        return self.most * self._layout.row_bytes

    def emptied(self) -> RowBuffer:
        """Itself, to be filled anew: nobody reads any more what was in it."""
        self.count = self.finals = 0
        self._seen.clear()
        return self

    def put_step(self, step: dict[str, Any], stream: int, priority: float | None) -> bool:
        """One step within its episode, unchecked; ``False``, and nothing done, if it has to be looked at more closely."""
        way, at = self._way, self.count
        if way.packed is None or len(step) != len(way.fields):
            return False
        values = []
        for key, dtype, shape, numbers, frame in way.fields:
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
            way.packed.pack_into(self._packed, at * way.packed.size, stream, 0, _NAN if priority is None else priority, *values)
        except (struct.error, OverflowError):  # a number that does not fit
            return False
        self._seen.add(stream)
        self.count = at + 1
        return True

    def put(self, values: Sequence[Any], stream: int, flags: int, priority: float | None) -> None:
        """One step, checked."""
        self._write(self.count, values, stream, flags, priority)
        self.count += 1

    def put_last(
        self, values: Sequence[Any], stream: int, flags: int, priority: float | None,
        which: Iterable[int], final: Iterable[Any],
    ) -> None:  # fmt: skip
        """An episode's last step and the observation after it; if interrupted, neither."""
        self._write(self.count, values, stream, flags, priority)
        self._write_final(self.count + 1, which, final, stream, FINAL)
        self.finals += 1
        self.count += 2

    def put_final(
        self, which: Iterable[int], values: Iterable[Any], stream: int, flags: int = FINAL, *,
        ends: int = 0,
    ) -> None:  # fmt: skip
        """One row that is no step; the one before, a step, ends its episode with ``ends``."""
        at = self.count
        self._write_final(at, which, values, stream, flags)
        if ends:
            self._flags[at - 1] = ends
        self.finals += 1
        self.count = at + 1

    def ends_in(self, stream: int) -> bool:
        """Whether the newest row is a step of this stream that has not ended its episode."""
        at = self.count - 1
        return at >= 0 and bool(self._streams[at] == stream) and not self._flags[at]

    def _write(self, at: int, values: Sequence[Any], stream: int, flags: int, priority: float | None) -> None:
        for view, value in zip(self.views, values, strict=True):
            view[at] = value
        self._streams[at], self._flags[at], self._priority[at] = stream, flags, _NAN if priority is None else priority
        self._seen.add(stream)

    def _write_final(self, at: int, which: Iterable[int], values: Iterable[Any], stream: int, flags: int) -> None:
        self._raw[at] = 0
        for column in self._columns:
            column[at] = 0
        for i, value in zip(which, values, strict=True):
            self.views[i][at] = value
        self._streams[at], self._flags[at], self._priority[at] = stream, flags, _NAN
        self._seen.add(stream)

    def put_rows(self, rows: CheckedRows, first: int, count: int) -> None:
        """Some of many."""
        to, of = slice(self.count, self.count + count), slice(first, first + count)
        for view, column in zip(self.views, rows.columns, strict=True):
            view[to] = column[of]
        streams = rows.streams[of]
        self._streams[to], self._flags[to], self._priority[to] = streams, rows.flags[of], rows.priorities[of]
        self._seen.update(streams[:1].tolist() if (streams == streams[0]).all() else np.unique(streams).tolist())
        self.finals += rows.finals(first, count)
        self.count += count

    def sealed(self) -> InsertPayload:
        """The message. If it is full, it lies in this part, which is not to be changed until nobody needs that any more."""
        n, frames, part = self.count, self._frames, self
        if n < self.most:
            sizes = self._layout.frame_bytes
            frames = [copied(memoryview(frame)[: n * size]) for frame, size in zip(frames, sizes, strict=True)]
            return InsertPayload(Insert(n, frames), n * self._layout.row_bytes, self.finals, frozenset(self._seen), None)
        return InsertPayload(Insert(n, frames), self.nbytes, self.finals, frozenset(self._seen), part)


@dataclass(slots=True, eq=False)
class InsertPayload:
    """An INSERT that is kept until it is acknowledged, how many of its rows are no steps, which streams it continues, and the
    part that it lies in, if it does.
    """

    insert: Insert
    nbytes: int
    finals: int
    streams: frozenset[int]
    part: RowBuffer | None


@dataclass(slots=True, eq=False)
class CheckedRows:
    """Many checked rows, final ones in between."""

    columns: list[Array]
    streams: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint32]
    priorities: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.streams)

    def ended(self) -> list[int]:
        """Streams whose last row here ends an episode."""
        last = len(self) - 1 - np.unique(self.streams[::-1], return_index=True)[1]
        return [int(one) for one in self.streams[last[self.flags[last] != 0]]]

    def finals(self, first: int, count: int) -> int:
        """How many of these are no steps."""
        return int(np.count_nonzero(self.flags[first : first + count] & FINAL))


class RowPacker:
    """Checks steps of one schema. Any thread.

    Parameters
    ----------
    schema : Schema
    batch_rows : int
        Of a message that is filled by and by.
    message_bytes : int
        Of any message.

    Raises
    ------
    SchemaError, Malformed
        For a schema that cannot travel, or of which not even one row does.
    """

    def __init__(self, schema: Schema, batch_rows: int, message_bytes: int) -> None:
        self.schema = schema
        self.layout = RowLayout.of(schema)
        self.step_packer = StepPacker(StorageLayout.of(schema, 1), 0)
        self.message_rows = self.layout.rows_within(message_bytes)
        self.message_rows = max(1, self.message_rows - 1)  # and a final observation, which is in its step's message
        self.part_rows = min(batch_rows, self.message_rows)
        self.part_bytes = self.part_rows * self.layout.row_bytes
        self._way = StructRowWriter(schema, self.layout)
        self._values = self.step_packer.values
        self._said = Ends(schema)
        self.stored = self._said.stored | ({"done"} if self._said.done else frozenset())
        ends = {self.step_packer.terminated, self.step_packer.truncated, self.step_packer.done} - {-1}
        self._ends = tuple(self.schema.fields[i].name for i in sorted(ends))  # what a step itself says of its end

    def goes_on(self, step: dict[str, Any], terminated: Any, truncated: Any) -> bool:
        """Whether the episode does after this step, which is given what it stores of that."""
        try:
            if terminated or truncated:
                return False
            for name in self.stored:
                if name not in step:
                    step[name] = False
            for end in self._ends:
                if step.get(end):
                    return False
        except Exception:  # several values have no truth: what is wrong with them is said when they are checked
            return False
        return True

    def row(self, step: dict[str, Any], terminated: Any, truncated: Any, final: Any) -> tuple[list[Any], int, list[Any] | None]:
        """One step's values, flags and final observation. ``step`` may be changed.

        Raises
        ------
        SchemaError
        """
        said = self._said.into(step, terminated, truncated)
        values = self._values(step)
        ends = None if final is None else self.step_packer.final_values(final)
        return values, self.step_packer.flags(values, final is not None, said) & _ENDS, ends

    def final_values(self, final: Any) -> list[Any]:
        return self.step_packer.final_values(final)

    @property
    def followed(self) -> list[int]:
        return self.step_packer.followed

    def rows(
        self, batch: dict[str, Any], streams: npt.NDArray[np.uint32], priority: Any, final_obs: Any,
        terminated: Any = False, truncated: Any = False,
    ) -> CheckedRows:  # fmt: skip
        """Many steps, with their final observations in between. ``batch`` may be changed.

        Raises
        ------
        SchemaError, ConfigError
        """
        step_packer = self.step_packer
        ends = self._said.into_columns(batch, terminated, truncated)
        columns = step_packer.columns(batch)
        count = len(columns[0])
        flags = step_packer.column_ends(columns)
        if ends is not None:
            flags |= ends
        has_final, finals = np.zeros(count, np.bool_), None
        if final_obs is not None:
            finals, has_final = step_packer.final_columns(final_obs, (flags & _ENDS) != 0)
        said = (step_packer.check_ends(flags, has_final) & _ENDS).astype(np.uint32)
        priorities = given_priorities(priority, count)
        if priority is not None:
            priority_rules.check_sent(priorities)
        rows = CheckedRows(columns, streams, said, priorities)
        return rows if finals is None or not has_final.any() else self._with_finals(rows, finals, has_final)

    def _with_finals(self, rows: CheckedRows, finals: Sequence[Array], has_final: npt.NDArray[np.bool_]) -> CheckedRows:
        ends = np.flatnonzero(has_final)
        steps = np.arange(len(rows)) + np.concatenate([[0], np.cumsum(has_final)[:-1]])
        after = steps[ends] + 1
        total = len(rows) + len(ends)

        def spread(values: Array) -> Array:
            whole = np.zeros((total, *values.shape[1:]), values.dtype)
            whole[steps] = values
            return whole

        columns = [spread(column) for column in rows.columns]
        for i, final in zip(self.followed, finals, strict=True):
            columns[i][after] = final[ends]
        streams, flags, priorities = spread(rows.streams), spread(rows.flags), spread(rows.priorities)
        streams[after], flags[after], priorities[after] = rows.streams[ends], FINAL, np.nan
        return CheckedRows(columns, streams, flags, priorities)

    def whole(self, rows: CheckedRows, first: int) -> int:
        """How many of the rows from ``first`` on are in the next message, when it is no longer than it may be."""
        count = min(len(rows) - first, self.message_rows)
        last = first + count
        return count + (last < len(rows) and bool(rows.flags[last] == FINAL))

    def part(self, rows: int) -> RowBuffer:
        """An empty one, for so many."""
        return RowBuffer(self.layout, rows, self._way)

    def cut(self, streams: Iterable[int]) -> InsertPayload:
        """A message that says: what comes next in these streams does not continue what came before."""
        listed = sorted(streams)
        part = self.part(max(1, len(listed)))
        for stream in listed:
            part.put_final((), (), stream, FINAL | TRUNCATED)
        payload = part.sealed()
        payload.part = None  # of a size that is not wanted again
        return payload


def checked_priority(priority: Any) -> float:
    """Raises ConfigError for what is no priority."""
    given = one_float(priority, "priority")
    if not 0 <= given[0] <= priority_rules.LARGEST:
        priority_rules.check_sent(given)
    return float(given[0])


def given_priorities(priority: Any, count: int) -> npt.NDArray[np.float64]:
    """Priorities of ``count`` rows, NaN where ``priority`` is None. Raises ConfigError unless there is one for each row."""
    if priority is None:
        return np.full(count, np.nan)
    given = floats_of(priority, "priority")
    if given.size != count:
        raise ConfigError(f"priority has shape {given.shape} for {count} rows: one number for each")
    return given
