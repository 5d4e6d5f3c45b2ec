"""Inserts steps: they are checked outside the table's lock, and written under it when the limiter
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import Closed, ConfigError, Timeout, Unsupported, WouldDeadlock
from async_loader.lifecycle import seconds, seconds_or_none
from async_loader.replay.arguments import one_float, schema_of_columns, storable
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base.field_table import NO_FIELDS, from_step
from async_loader.replay.base.row_format import CURSOR, FINAL
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stream_names import EachStream, StreamName, stream_name, stream_names
from async_loader.replay.table.records import Rows, RowSource, plain_heads
from async_loader.replay.table.step_packer import NOT_PACKED, StepPacker
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState
from async_loader.schema import Schema
from async_loader.source import Applied

_NAN = float("nan")
_INT64 = np.dtype(np.int64)
_AS_THEY_ARE = (EachStream, range, int, str, StreamName)


class _Streams(NamedTuple):
    """The streams of the last batch: a vector of environments names the same ones in every call.

    ``known_to``: the table's numbers of its streams, which hold while the table has this mapping.
    ``heads``: of steps of these streams within their episodes.
    """

    given: object
    known_to: Mapping[Hashable, int]
    numbers: Ids
    heads: bytes


class Inserter:
    """Inserts steps and changes priorities. Any thread.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self._last: _Streams | None = None

    def add(
        self,
        step: Mapping[str, Any],
        stream: Hashable,
        said: int,
        priority: object,
        timeout_s: float | None,
        final: object,
    ) -> int:
        """Insert one step and return its id.

        ``said``: flags that tell how the episode stands, beside the step's own fields.
        """
        table_state = self._table_state
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if type(stream) is not int and type(stream) is not str and type(stream) is not StreamName:
            stream = stream_name(stream)
        table = table_state._table
        if table is None:
            self._begin_with(step, said, final, priority)
            table = table_state.table
        values, flags = table.packer.pack(step, said, final is not None)
        last = None if final is None else table.packer.final(final)
        given = _NAN
        if priority is not None or table_state.needs_priority:
            given = self._priority(priority)
        try:
            if table_state._limits is None:
                with table_state.lock:
                    records = table.records
                    number, at = table.streams.get(stream), records.count
                    if (
                        number is not None
                        and 0 < at < records.limit - 1
                        and records.single
                        and last is None
                        and not table_state.waiters.any_waits
                    ):  # as in `_put`, in half the time
                        if records.large:
                            records.put(values, number, flags, given)
                        else:
                            place = at * records.size
                            records.pack_into(records.memory, place, number, flags, given, *values)
                            records.count = at + 1
                        return records.first + at
                    return self._put(stream, values, flags, given, last)
            ids: list[int] = []
            self._when_insertable(
                lambda: ids.append(self._put(stream, values, flags, given, last)),
                1,
                timeout_s,
                1 if last is None else 2,
                stream,
            )
            return ids[0]
        except NOT_PACKED:
            table.packer.pack_unusual(step, said, final is not None)  # raises what is wrong
            raise

    def _put(
        self,
        stream: Hashable,
        values: list[Any],
        flags: int,
        priority: float,
        final: list[Any] | None,
    ) -> int:
        """Add a packed step and its final observation. Return its id. Under the lock."""
        table_state = self._table_state
        table = table_state.table
        records = table.records
        if records.limit == 1:
            table_state.own()
        number = table.streams.get(stream)
        if number is None:
            number = table.stream(stream)
        if not records.single:
            table.single()
        at = records.count
        if not at:
            records.first = int(table.g[CURSOR])
        id_ = records.first + at
        records.put(values, number, flags, priority)
        if final is not None:
            records.put(final, number, FINAL, _NAN)
        if records.count >= records.limit or table_state.waiters.any_waits:
            id_ = int(self._write(table, at, 1)[0])
        return id_

    def _write(self, table: Table, at: int, count: int) -> Ids:
        """Write what was gathered. Return the ids of ``count`` records from place ``at`` on."""
        try:
            table.write_records()
        finally:
            self._table_state.waiters.ring()
        return table.ids_at(at, count)

    def extend(
        self,
        batch: Mapping[str, Any],
        stream: object,
        priority: object,
        timeout_s: float | None,
        final_obs: object,
        said: Ids | None = None,
        whole: bool = False,
    ) -> Ids:
        """Insert many steps and return their ids.

        Parameters
        ----------
        said : int64 array [rows], optional
            As in `add`, for each.
        whole : bool
            Under a limiter, wait until all may be inserted, rather than insert one by one.
        """
        table_state = self._table_state
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if not table_state.ready:

            def check(packer: StepPacker) -> None:
                steps = packer.rows(batch, said, final_obs).steps
                if priority is not None or table_state.prioritized:
                    self._priorities(priority, steps)
                stream_names(stream, steps, ())

            self._begin(schema_of_columns(batch), check)
        rows = table_state.step_packer.rows(batch, said, final_obs)
        if priority is not None or table_state.needs_priority:
            rows.prioritize(self._priorities(priority, rows.steps))
        if table_state._limits is None:
            with table_state.lock:
                return self._put_rows(rows, stream)
        with table_state.lock:
            names = stream_names(stream, rows.steps, table_state.own().streams)
        if not whole:
            return self._one_by_one(rows, names, timeout_s)
        ids: list[Ids] = []
        self._when_insertable(
            lambda: ids.append(self._put_rows(rows, stream)),
            rows.steps,
            timeout_s,
            len(rows),
            names,
        )
        return ids[0]

    def _put_rows(self, rows: Rows, stream: object) -> Ids:
        """Add many records. Return the ids of their steps. Under the lock."""
        table_state = self._table_state
        table = table_state.table
        records = table.records
        if records.limit == 1:
            table_state.own()
        streams = self._numbers(table, stream, rows.steps)
        heads = None
        packed = streams.heads
        if rows.heads is not None or rows.repeats is not None:
            heads = rows.of(streams.numbers)
            packed = heads.tobytes()
        place = table.gather_batch(rows.columns, packed)
        if place < 0:
            table.finish()
            columns = [np.ascontiguousarray(column) for column in rows.columns]
            ids = np.empty(len(rows), np.int64)
            heads = rows.of(streams.numbers) if heads is None else heads
            table.write(RowSource.of(table.fields_of(columns), heads), len(ids), ids)
        elif table_state.waiters.any_waits:
            ids = self._write(table, place, len(rows))
        else:
            ids = table.ids_at(place, len(rows))
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return ids if rows.repeats is None else ids[rows.are_steps]

    def _numbers(self, table: Table, stream: object, steps: int) -> _Streams:
        """Return the streams of a batch. Under the lock."""
        last = self._last
        if (
            last is not None
            and last.known_to is table.streams
            and len(last.numbers) == steps
            and (stream is last.given or _is_same(last.given, stream))
        ):
            return last
        names = stream_names(stream, steps, table.streams)
        if isinstance(names, list):
            numbers = table.numbers(names)
        else:
            numbers = np.full(steps, table.stream(names), np.int64)
        heads = plain_heads(steps)
        heads["stream"] = numbers
        self._last = _Streams(_kept(stream), table.streams, numbers, heads.tobytes())
        return self._last

    def _begin_with(
        self, step: Mapping[str, Any], said: int, final: object, priority: object
    ) -> None:
        def check(packer: StepPacker) -> None:
            packer.pack_unusual(step, said, final is not None)
            if final is not None:
                packer.final(final)
            if priority is not None or self._table_state.prioritized:
                self._priority(priority)

        self._begin(Schema.of_step(step), check)

    def _begin(self, schema: Schema, check: Callable[[StepPacker], Any]) -> None:
        """Allocate the table for its first step.

        If ``check`` refuses that step, the next may be another.
        """
        storable(schema)
        check(StepPacker(schema))
        self._table_state.start(schema)

    def _one_by_one(
        self, rows: Rows, names: Hashable | list[Hashable], timeout_s: float | None
    ) -> Ids:
        """Insert each step as soon as the limiter allows it; other threads may insert between."""
        table_state, count = self._table_state, rows.steps
        columns = [np.ascontiguousarray(column) for column in rows.columns]
        fields = table_state.table.fields_of(columns)
        heads, ids = rows.of(np.zeros(count, np.int64)), np.empty(len(rows), np.int64)
        stop = 0
        for i in range(count):
            start, stop = stop, stop + (1 if rows.repeats is None else int(rows.repeats[i]))
            part, name = slice(start, stop), names[i] if isinstance(names, list) else names

            def write(part: slice = part, name: Hashable = name) -> None:
                table = table_state.own()
                heads["stream"][part] = table.stream(name)
                source = RowSource.of(from_step(fields, part.start), heads[part])
                table.write(source, part.stop - part.start, ids[part])

            try:
                self._when_insertable(write, 1, timeout_s, stop - start, name)
            except (Timeout, WouldDeadlock, Closed) as error:
                made = type(error)(f"{i} of {count} steps are in: {error}")
                made.steps_in = i  # type: ignore[union-attr]
                raise made from None
        return ids[rows.are_steps]

    def end_episodes(
        self,
        streams: Sequence[Hashable],
        final_obs: object,
        flags: int,
        timeout_s: float | None = None,
    ) -> None:
        """End the episodes of these streams after their last steps.

        Waits while a queue has no row for ``final_obs``.
        """
        table_state = self._table_state
        seconds_or_none("timeout_s", timeout_s)
        if not table_state.ready:
            return
        final, columns = NO_FIELDS, []
        if final_obs is not None:
            packer = table_state.step_packer
            for i, value in zip(packer.followed, packer.final_values(final_obs), strict=True):
                columns.append(np.asarray(value, packer.schema.fields[i].dtype)[np.newaxis])
            final = table_state.table.fields_of(columns, packer.followed)

        def why_not() -> str | None:
            numbers = {table_state.table.streams.get(stream, -1) for stream in streams}
            return None if table_state.has_room(1, numbers) else table_state.table.why_full()

        def attempt() -> bool:
            table = table_state.own()
            try:
                for stream in streams:
                    number = table.streams.get(stream)
                    if number is None:
                        continue
                    if columns and not table_state.has_room(1, (number,)):
                        return False
                    table.end_stream(number, flags, final)
            finally:
                table_state.waiters.ring()
            return True

        table_state.waiters.until(attempt, "insert", why_not, timeout_s)

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """Change priorities by id."""
        table_state = self._table_state
        if ids.shape != priority.shape:
            raise ConfigError(f"{len(ids)} ids and {len(priority)} priorities: one for each")
        if not table_state.prioritized:
            raise Unsupported(
                f"this table samples by {table_state.sampler!r}, and has no priorities to update: "
                "leave update_priorities out"
            )
        priority_rules.check_given(priority)
        self.checked(priority)
        if not table_state.ready:
            return Applied(0, len(ids))
        with table_state.lock:
            table_state.catch_up()
            return table_state.table.prioritize(ids, priority)

    def _when_insertable(
        self,
        write: Callable[[], None],
        count: int,
        timeout_s: float | None,
        rows: int,
        names: Hashable | list[Hashable],
    ) -> None:
        """Call ``write`` under the lock as soon as the limiter allows ``count`` items and ``rows``
        rows are free.
        """
        table_state = self._table_state

        def streams() -> set[int]:
            table = table_state.table
            if not table.keeps:
                return set()
            listed = names if isinstance(names, list) else [names]
            return {table.streams.get(name, -1) for name in listed}

        def attempt() -> bool:
            table_state.check_open()
            if not table_state.may_insert(count, rows, streams()):
                self._check_ever(count, rows)
                return False
            try:
                write()
            finally:
                table_state.waiters.ring()
            return True

        table_state.waiters.until(
            attempt, "insert", lambda: table_state.why_not_insert(count, rows, streams()), timeout_s
        )

    def _check_ever(self, count: int, rows: int) -> None:
        """Raise ConfigError if ``count`` steps, in ``rows`` rows, can never be inserted at once."""
        limits, table = self._table_state.limits, self._table_state.table
        if count > 1 and table.keeps and rows > table.window:
            raise ConfigError(
                f"{count} steps go into the table together or not at all, in {rows} rows, and it "
                f"has {table.window}: raise the capacity"
            )
        if limits is not None and count > 1 and not limits.can_ever_insert(count):
            raise ConfigError(
                f"{count} steps go into the table together or not at all: "
                f"{limits.why_not_insert(count)}"
            )

    def _priority(self, priority: object) -> float:
        """Check the priority of one step."""
        given = np.full(1, _NAN) if priority is None else one_float(priority, "priority")
        return float(self.checked(given)[0])

    def _priorities(self, priority: object, count: int) -> Floats:
        if priority is None:
            return self.checked(np.full(count, _NAN))
        self._check_used()
        return self.checked(priority_rules.column_of(priority, count))

    def _check_used(self) -> None:
        """Raise Unsupported for a table without priorities."""
        if (why := self._table_state.no_priorities) is not None:
            raise Unsupported(why)

    def checked(self, priority: Floats) -> Floats:
        """Return the priorities if each sampler and remover that uses them allows them.

        Raises ConfigError.
        """
        table_state = self._table_state
        self._check_used()
        known = (
            table_state.table.prioritized
            if table_state.ready
            else [one for one in (table_state.sampler, table_state.remover) if one.prioritized]
        )
        for one in known:
            one.check(priority)
        return priority


def _kept(stream: Any) -> object:
    """Return a copy of names that is cheap to compare, an object that equals nothing for others."""
    if type(stream) in _AS_THEY_ARE:
        return stream
    if type(stream) is np.ndarray and stream.dtype is _INT64 and stream.ndim == 1:
        return stream.tobytes()
    if type(stream) is list and all(type(one) in _AS_THEY_ARE for one in stream):
        return stream.copy()
    return object()


def _is_same(kept: object, stream: Any) -> bool:
    """Return whether ``stream`` gives the names of which `_kept` has returned ``kept``."""
    kind = type(stream)
    if kind is list:
        return type(kept) is list and kept == stream
    if kind is np.ndarray:
        return type(kept) is bytes and stream.dtype is _INT64 and kept == stream.tobytes()
    return kind is type(kept) and kind in _AS_THEY_ARE and bool(kept == stream)
