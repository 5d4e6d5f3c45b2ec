"""Steps as the rows of a message: checked as a table checks them, written straight to where they travel. Sends nothing.

NOTE [the hot path]. A step within an episode, of a schema that is not nested, is checked while it is written: `Part.put_step`.
It counts only when all of it was, so what does not fit leaves nothing. All others, and what needs a closer look, are checked
first (`Packer.row`) and written then (`Part.put`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.wire import FINAL, TERMINATED, TRUNCATED, Insert, RowLayout
from async_loader.replay.arguments import floats_of
from async_loader.replay.staging import Stage
from async_loader.replay.storage import StorageLayout
from async_loader.schema import Field, Schema

Array = npt.NDArray[Any]
_ENDS = TERMINATED | TRUNCATED
Kind = tuple[str, np.dtype[Any], tuple[int, ...], type | tuple[()], Any, Any]
"""A field: its key at the top of a step, dtype and shape; Python's type for one value of it, the least and the largest."""


@dataclass(slots=True, eq=False)
class Payload:
    """An INSERT that is kept until it is acknowledged, which streams it continues, and how many of its rows are no steps."""

    insert: Insert
    streams: frozenset[int]
    finals: int


class Part:
    """A message that is being filled. One thread at a time.

    Attributes
    ----------
    count, most : int
        Rows in it, and at how many it is full. There is room for one more: a final observation is in its step's message.
    finals : int
        Rows that are no steps.
    """

    __slots__ = ("_columns", "_flags", "_packed", "_priority", "_streams", "_way", "count", "finals", "most", "views")

    def __init__(self, layout: RowLayout, most: int, kinds: Sequence[Kind] = ()) -> None:
        self.count, self.finals, self.most = 0, 0, most
        self._packed = packed = np.zeros(most + 1, layout.packed)  # zeros: what lies between fields would be memory of ours
        self._streams, self._flags, self._priority = packed["stream"], packed["flags"], packed["priority"]
        self._priority[:] = np.nan
        fields = layout.fields
        self.views: list[Array] = [
            np.empty((most + 1, *fields[i].shape), fields[i].dtype) if offset is None else packed[f"f{i}"]
            for i, offset in enumerate(layout.offsets)
        ]
        self._columns = [self.views[i] for i in layout.large]
        self._way = [(*kind, view) for kind, view in zip(kinds, self.views, strict=False)]

    def put_step(self, step: dict[str, Any], stream: int, priority: float | None) -> bool:
        """One step within its episode, unchecked; ``False``, and nothing done, if it has to be looked at more closely."""
        way, at = self._way, self.count
        if len(step) != len(way):
            return False
        for key, dtype, shape, number, low, high, view in way:
            value: Any = step.get(key)
            if type(value) is np.ndarray:
                if value.dtype is not dtype or value.shape != shape:
                    return False
            elif not isinstance(value, number) or not low <= value <= high:
                return False
            view[at] = value
        if stream:
            self._streams[at] = stream
        if priority is not None:
            self._priority[at] = priority
        self.count = at + 1
        return True

    def put(self, values: Sequence[Any], stream: int, flags: int, priority: float | None) -> None:
        """One step, checked."""
        at = self.count
        for view, value in zip(self.views, values, strict=False):
            view[at] = value
        if stream:
            self._streams[at] = stream
        if flags:
            self._flags[at] = flags
        if priority is not None:
            self._priority[at] = priority
        self.count = at + 1

    def put_final(self, which: Iterable[int], values: Iterable[Any], stream: int, flags: int = FINAL) -> None:
        """One row that is no step."""
        at = self.count
        for column in self._columns:
            column[at] = 0
        for i, value in zip(which, values, strict=True):
            self.views[i][at] = value
        self._streams[at], self._flags[at] = stream, flags
        self.finals += 1
        self.count = at + 1

    def end_last(self, stream: int, flags: int) -> bool:
        """Say that the stream's episode ended with the newest row; whether that is one of its steps."""
        at = self.count - 1
        if at < 0 or self._streams[at] != stream or self._flags[at]:
            return False
        self._flags[at] = flags
        return True

    def put_rows(self, rows: Rows, first: int, count: int) -> None:
        """Some of many."""
        to, of = slice(self.count, self.count + count), slice(first, first + count)
        for view, column in zip(self.views, rows.columns, strict=True):
            view[to] = column[of]
        self._streams[to], self._flags[to], self._priority[to] = rows.streams[of], rows.flags[of], rows.priorities[of]
        self.finals += rows.finals(first, count)
        self.count += count

    def sealed(self) -> tuple[Payload, int]:
        """The message, which is not to be changed any more, and its bytes."""
        n = self.count
        packed, columns = self._packed[:n], [column[:n] for column in self._columns]
        if 2 * n < self.most:  # it is kept until it is acknowledged: not with the room for those that did not come
            packed, columns = packed.copy(), [column.copy() for column in columns]
        frames = [packed.view(np.uint8), *columns]
        streams = frozenset(np.unique(self._streams[:n]).tolist())
        return Payload(Insert(n, frames), streams, self.finals), sum(frame.nbytes for frame in frames)


@dataclass(slots=True, eq=False)
class Rows:
    """Many checked rows, final ones in between."""

    columns: list[Array]
    streams: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint32]
    priorities: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.streams)

    def finals(self, first: int, count: int) -> int:
        """How many of these are no steps."""
        return int(np.count_nonzero(self.flags[first : first + count] & FINAL))


class Packer:
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
        self.layout = RowLayout.of(schema, headed=True)
        self.stage = Stage(StorageLayout.of(schema, 1), 0)
        self.message_rows = self.layout.rows_within(message_bytes)
        self.message_rows = max(1, self.message_rows - 1)  # and a final observation
        self.part_rows = min(batch_rows, self.message_rows)
        self.part_bytes = self.part_rows * self.layout.row_bytes
        root = schema.structure
        flat = isinstance(root, tree.Node) and root.kind is dict and not any(root.children)
        keys = root.keys if flat and root is not None else ()
        self.kinds: list[Kind] = [
            (key, f.dtype, f.shape, *_bounds(f)) for key, f in zip(keys, schema.fields if flat else (), strict=True)
        ]
        self._values = self.stage.values
        known = {field.name for field in schema.fields}
        self._stored = tuple(name for name in ("terminated", "truncated") if name in known)
        ends = {self.stage.terminated, self.stage.truncated} - {-1}
        self._ends = tuple(self.schema.fields[i].name for i in sorted(ends))  # what a step itself says of its end

    def goes_on(self, step: dict[str, Any], terminated: Any, truncated: Any) -> bool:
        """Whether the episode does after this step, which is given what it stores of that."""
        if terminated or truncated:
            return False
        for name in self._stored:
            if name not in step:
                step[name] = False
        for end in self._ends:  # noqa: SIM110 - a generator would cost as much as the rest
            if step.get(end):
                return False
        return True

    def row(self, step: dict[str, Any], terminated: Any, truncated: Any, final: Any) -> tuple[list[Any], int, list[Any] | None]:
        """One step's values, flags and final observation. ``step`` may be changed.

        Raises
        ------
        SchemaError
        """
        for name in self._stored:
            if name not in step:
                step[name] = bool(terminated if name == "terminated" else truncated)
        values = self._values(step)
        said = 0
        for name, flag, given in (("terminated", TERMINATED, terminated), ("truncated", TRUNCATED, truncated)):
            if given and name not in self._stored:  # where it is stored, the step says it
                said |= flag
        flags = self.stage.flags(values, final is not None, said) & _ENDS
        return values, flags, None if final is None else self.stage.final_values(final)

    def final_values(self, final: Any) -> list[Any]:
        return self.stage.final_values(final)

    @property
    def followed(self) -> list[int]:
        return self.stage.followed

    def rows(self, batch: Mapping[str, Any], stream: Any, priority: Any, final_obs: Any) -> Rows:
        """Many steps, with their final observations in between.

        Raises
        ------
        SchemaError, ConfigError
        """
        stage = self.stage
        columns = stage.columns(batch)
        count = len(columns[0])
        flags = stage.column_ends(columns)
        has_final, finals = np.zeros(count, np.bool_), None
        if final_obs is not None:
            finals, has_final = stage.final_columns(final_obs, (flags & _ENDS) != 0)
        said = (stage.check_ends(flags, has_final) & _ENDS).astype(np.uint32)
        streams, priorities = streams_of(stream, count), _priorities(priority, count)
        rows = Rows(columns, streams, said, priorities)
        return rows if finals is None or not has_final.any() else self._with_finals(rows, finals, has_final)

    def _with_finals(self, rows: Rows, finals: Sequence[Array], has_final: npt.NDArray[np.bool_]) -> Rows:
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
        return Rows(columns, streams, flags, priorities)

    def whole(self, rows: Rows, first: int) -> int:
        """How many of the rows from ``first`` on are in the next message, when it is no longer than it may be."""
        count = min(len(rows) - first, self.message_rows)
        last = first + count
        return count + (last < len(rows) and bool(rows.flags[last] == FINAL))

    def cut(self, streams: Iterable[int]) -> tuple[Payload, int]:
        """A message that says: what comes next in these streams does not continue what came before."""
        listed = sorted(streams)
        part = Part(self.layout, max(1, len(listed)))
        for stream in listed:
            part.put_final((), (), stream, FINAL | TRUNCATED)
        return part.sealed()


def _bounds(field: Field) -> tuple[type | tuple[()], Any, Any]:
    """The Python numbers that a field surely holds: their type, the least and the largest; no type if there are none."""
    kind = field.dtype.kind
    if field.shape or kind == "c":
        return (), 0, 0
    if kind == "f":
        most = float(np.finfo(field.dtype).max)
        return float, -most, most
    if kind == "b":
        return bool, False, True
    limits = np.iinfo(field.dtype)
    return int, int(limits.min), int(limits.max)


def streams_of(stream: Any, count: int) -> npt.NDArray[np.uint32]:
    """One number for each row. Raises ConfigError, SchemaError."""
    given = np.asarray(stream)
    if given.dtype.kind not in "iu" or (given.size and not 0 <= given.min() <= given.max() < 2**32):
        raise ConfigError(f"stream={stream!r}: streams are numbers from 0 to 2**32 - 1")
    if given.ndim == 0:
        return np.full(count, given, np.uint32)
    if given.shape != (count,):
        raise SchemaError(f"{len(given)} streams are given for {count} rows: one for each, or one for all")
    return given.astype(np.uint32)


def checked_priority(priority: Any) -> float:
    """Raises ConfigError for what is no priority."""
    value = float(priority)
    if not 0 <= value < float("inf"):
        raise ConfigError(f"priority {value}: priorities are finite, 0 or more")
    return value


def _priorities(priority: Any, count: int) -> npt.NDArray[np.float64]:
    if priority is None:
        return np.full(count, np.nan)
    given = floats_of(priority, "priority")
    if given.shape != (count,):
        raise ConfigError(f"priority has shape {given.shape} for {count} rows: one number for each")
    if given.size and not (given.min() >= 0 and given.max() < np.inf):
        raise ConfigError(f"priorities from {given.min()} to {given.max()}: they are finite, 0 or more")
    return given
