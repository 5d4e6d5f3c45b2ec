"""Inserts steps: they are checked outside the table's lock, and written under it when the limiter
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader.errors import Closed, ConfigError, Timeout, Unsupported, WouldDeadlock
from async_loader.lifecycle import seconds, seconds_or_none
from async_loader.replay.arguments import one_float, schema_of_columns, storable
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES, from_step
from async_loader.replay.base.row_format import AWAITS
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stream_names import StreamName, stream_name, stream_names
from async_loader.replay.table.last_streams import LastStreams
from async_loader.replay.table.staged_steps import NOT_STAGED
from async_loader.replay.table.step_packer import StepPacker, Steps
from async_loader.replay.table.storage import StorageLayout
from async_loader.replay.table.table_state import TableState
from async_loader.schema import Schema
from async_loader.source import Applied

_NAN = float("nan")
_NO_ID = np.full(1, -1, np.int64)


class Inserter:
    """Inserts steps and changes priorities. Any thread.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        # of one step, under the lock
        self._stream, self._flags = (np.zeros(1, np.int64) for _ in range(2))
        self._last_streams: LastStreams | None = None

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

        Parameters
        ----------
        said : int
            Flags that tell how the episode stands, beside the step's own fields.
        """
        table_state = self._table_state
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if type(stream) is not int and type(stream) is not str and type(stream) is not StreamName:
            stream = stream_name(stream)
        staged = table_state.staged
        if staged is not None and final is None and priority is None:
            number = staged.add(table_state.table, step, stream, said)
            if number != NOT_STAGED:
                return number
        if not table_state.ready:
            self._begin(
                Schema.of_step(step),
                lambda step_packer: self._one(step_packer, step, said, priority, final),
            )
        step_packer = table_state.step_packer
        values, ends, flags, given = self._one(step_packer, step, said, priority, final)
        new = _NO_ID.copy()

        def write() -> None:
            table = table_state.own()
            number = table.streams.get(stream)
            self._stream[0] = table.stream(stream) if number is None else number
            self._flags[0] = flags
            last = NO_FIELDS if ends is None else step_packer.put_final(ends)
            table.write(step_packer.put(values), last, 1, self._stream, self._flags, given, new)
            if table_state.staged is None and table_state.may_stage:
                table_state.stage()

        self._write(write, 1, timeout_s, 1 if ends is None else 2, stream)
        return int(new[0])

    def _one(
        self,
        step_packer: StepPacker,
        step: Mapping[str, Any],
        said: int,
        priority: object,
        final: object,
    ) -> tuple[list[Any], list[Any] | None, int, Floats]:
        """Check one step.

        Return its values, those of its final observation, its flags, its priority.
        """
        values = step_packer.values(step)
        ends = None if final is None else step_packer.final_values(final)
        flags = step_packer.flags(values, ends is not None, said)
        if priority is None and not self._table_state.prioritized:
            return values, ends, flags, NO_PRIORITIES
        given = np.full(1, _NAN) if priority is None else one_float(priority, "priority")
        return values, ends, flags, self.checked(given)

    def extend(
        self,
        batch: Mapping[str, Any],
        stream: object,
        priority: object,
        timeout_s: float | None,
        final_obs: object,
        said: Ids | None = None,
        ids: Callable[[int], Ids] | None = None,
        whole: bool = False,
    ) -> Ids:
        """Insert many steps and return their ids.

        Parameters
        ----------
        said : int64 array [rows], optional
            As in `add`, for each.
        ids : callable, optional
            Returns an array for this many ids, all -1; each id is stored there when its step is in.
        whole : bool
            Under a limiter, wait until all may be inserted, rather than insert one by one.
        """
        table_state = self._table_state
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)

        if not table_state.ready:

            def check(step_packer: StepPacker) -> None:
                _, _, flags, _ = step_packer.steps(batch, final_obs, said)
                self._priorities(priority, len(flags))
                stream_names(stream, len(flags), ())

            self._begin(schema_of_columns(batch), check)
        staged = table_state.staged
        if staged is not None and final_obs is None and priority is None:
            known = staged.extend(table_state.table, batch, stream, said, ids)
            if known is not None:
                return known
        steps = table_state.step_packer.steps(batch, final_obs, said)
        source, final, flags, memory = steps
        count = len(flags)
        given = self._priorities(priority, count)
        last = self._last_streams
        if last is not None and last.are(stream, count):
            names: Any = last.names
        else:
            last = None
            with table_state.lock:
                names = stream_names(stream, count, table_state.own().streams)
        new = np.full(count, -1, np.int64) if ids is None else ids(count)
        if table_state.limiter is not None and not whole:
            self._one_by_one(steps, names, given, new, timeout_s)
            return new

        def write() -> None:
            table = table_state.own()
            if last is not None and last.known_to is table.streams:
                numbers = last.numbers
            elif isinstance(names, list):
                numbers = table.numbers(names)
                self._last_streams = LastStreams.of(stream, names, table.streams, numbers)
            else:
                numbers = np.full(count, table.stream(names), np.int64)
            table.write(source, final, count, numbers, flags, given, new, memory)
            if table_state.staged is None and table_state.may_stage:
                table_state.stage()
            if table_state.staged is not None and final_obs is None and priority is None:
                table_state.staged.prepare(table, batch, stream, numbers)

        rows = count + (int(np.count_nonzero(flags & AWAITS)) if len(final) else 0)
        self._write(write, count, timeout_s, rows, names)
        return new

    def _begin(self, schema: Schema, check: Callable[[StepPacker], Any]) -> None:
        """Allocate the table for its first step.

        If ``check`` refuses that step, the next may be another.
        """
        storable(schema)
        check(StepPacker(StorageLayout.of(schema, 1), 0))
        self._table_state.start(schema)

    def _one_by_one(
        self,
        steps: Steps,
        names: Hashable | list[Hashable],
        given: Floats,
        ids: Ids,
        timeout_s: float | None,
    ) -> None:
        """Insert each step as soon as the limiter allows it; other threads may insert between."""
        source, final, flags, memory = steps
        table_state, count = self._table_state, len(flags)
        for i in range(count):
            one, last, step = from_step(source, i), from_step(final, i), slice(i, i + 1)
            name = names[i] if isinstance(names, list) else names

            def write(
                one: Ids = one, last: Ids = last, step: slice = step, name: Hashable = name
            ) -> None:
                table = table_state.own()
                number = np.full(1, table.stream(name), np.int64)
                table.write(one, last, 1, number, flags[step], given[step], ids[step], memory)

            try:
                self._write(write, 1, timeout_s, 2 if flags[i] & AWAITS else 1, name)
            except (Timeout, WouldDeadlock, Closed) as error:
                raise type(error)(f"{i} of {count} steps are in: {error}") from None

    def _write(
        self,
        write: Callable[[], None],
        count: int,
        timeout_s: float | None,
        rows: int,
        names: object,
    ) -> None:
        """Call ``write`` under the lock as soon as the limiter allows ``count`` items, and wake
        waiting calls.
        """
        table_state = self._table_state
        if table_state.limiter is not None:
            self._when_insertable(write, count, timeout_s, rows, names)
            return
        with table_state.lock:
            try:
                write()
                if table_state.waiters.any_waits:
                    table_state.waiters.ring()
            except BaseException:
                # after Ctrl-C: calls may wait for what was written
                table_state.waiters.ring()
                raise

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
        values = None if final_obs is None else table_state.step_packer.final_values(final_obs)

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
                    if values is not None and not table_state.has_room(1, (number,)):
                        return False
                    table.end_stream(
                        number,
                        flags,
                        NO_FIELDS if values is None else table_state.step_packer.put_final(values),
                    )
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

    def _priorities(self, priority: object, count: int) -> Floats:
        if priority is None:
            return (
                self.checked(np.full(count, _NAN))
                if self._table_state.prioritized
                else NO_PRIORITIES
            )
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
