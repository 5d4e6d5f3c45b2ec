"""How steps get into a table: checked outside its lock, written under it, waited for between. Draws nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, SchemaError, Timeout, Unsupported
from async_loader.lifecycle import seconds
from async_loader.replay.arguments import floats_of, schema_of_columns
from async_loader.replay.owner import Owner
from async_loader.replay.rows import TERMINATED, TRUNCATED
from async_loader.replay.samplers import policy
from async_loader.replay.staging import NO_FIELDS
from async_loader.schema import Schema
from async_loader.source import Applied

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_NO_PRIORITIES: Floats = np.empty(0)
_NAN = float("nan")


class Inserter:
    """Adds to a table. Any thread.

    Parameters
    ----------
    owner : Owner
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._stream, self._flags, self._new = (np.zeros(1, np.int64) for _ in range(3))  # of one step, under the lock

    def add(
        self,
        step: Mapping[str, Any],
        stream: Hashable,
        said: int,
        priority: float | None,
        timeout_s: float | None,
        final: Any,
    ) -> int:
        """One step; its id. ``said``: flags that say how the episode stands, beside what the step's own fields do."""
        owner = self._owner
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if not owner.ready:
            owner.start(Schema.of_step(step))
        stage = owner.stage
        values = stage.values(step)
        ends = None if final is None else stage.final_values(final)
        flags = stage.flags(values, ends is not None, said)
        given = _NO_PRIORITIES
        if priority is not None or owner.prioritized:
            given = self.checked(np.array([_NAN if priority is None else priority], np.float64))

        def write() -> int:
            table = owner.own()
            number = table.streams.get(stream)
            self._stream[0] = table.stream(stream) if number is None else number
            self._flags[0] = flags
            last = NO_FIELDS if ends is None else stage.put_final(ends)
            table.write(stage.put(values), last, 1, self._stream, self._flags, given, self._new)
            return int(self._new[0])

        if owner.limiter is not None:
            return self._when_insertable(write, timeout_s)
        with owner.lock:
            new = write()
            if owner.waiters.anybody:
                owner.waiters.ring()
        return new

    def extend(
        self,
        batch: Mapping[str, Any],
        stream: Any,
        priority: Any,
        timeout_s: float | None,
        final_obs: Any,
        said: Ids | None = None,
    ) -> Ids:
        """Many steps; their ids. ``said``: as in `add`, for each."""
        owner = self._owner
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if not owner.ready:
            owner.start(schema_of_columns(batch))
        stage = owner.stage
        columns = stage.columns(batch)
        count = len(columns[0])
        flags = stage.column_ends(columns)
        if said is not None:
            flags |= said
        final, finals, has_final = NO_FIELDS, None, np.zeros(count, np.bool_)
        if final_obs is not None:
            finals, has_final = stage.final_columns(final_obs, flags & (TERMINATED | TRUNCATED) != 0)
            final = stage.fields(stage.followed, finals)
        flags = stage.check_ends(flags, has_final)
        given = self._priorities(priority, count)
        source = stage.fields(stage.everything, columns)
        ids = np.empty(count, np.int64)
        with owner.lock:
            owner.own()
            streams = self._streams(stream, count)
        if owner.limiter is not None:
            self._one_by_one(source, final, count, streams, flags, given, ids, timeout_s)
        else:
            with owner.lock:
                owner.own().write(source, final, count, streams, flags, given, ids)
                owner.waiters.ring()
        return ids

    def _one_by_one(
        self, source: Ids, final: Ids, count: int, streams: Ids, flags: Ids, given: Floats, ids: Ids, timeout_s: float | None
    ) -> None:
        """The limiter counts one by one, and others may come between."""
        for i in range(count):
            one, last, step = _from(source, i), _from(final, i), slice(i, i + 1)
            arguments = (one, last, 1, streams[step], flags[step], given[step], ids[step])
            try:
                self._when_insertable(functools.partial(self._write, *arguments), timeout_s)
            except Timeout as error:
                raise Timeout(f"{i} of {count} steps are in: {error}") from None

    def _write(self, *arguments: Any) -> int:
        self._owner.own().write(*arguments)
        return 0

    def end_episode(self, stream: Hashable, final_obs: Any, flags: int) -> None:
        """End a stream's episode after its last step."""
        owner = self._owner
        if not owner.ready:
            return
        values = None if final_obs is None else owner.stage.final_values(final_obs)
        with owner.lock:
            table = owner.own()
            if stream in table.streams:
                table.end_stream(table.stream(stream), flags, NO_FIELDS if values is None else owner.stage.put_final(values))
                owner.waiters.ring()

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """New priorities by id."""
        owner = self._owner
        if ids.shape != priority.shape:
            raise ConfigError(f"{len(ids)} ids and {len(priority)} priorities: one for each")
        if not owner.prioritized:
            raise Unsupported(
                f"this table samples by {owner.sampler!r}, and has no priorities to update: leave update_priorities out"
            )
        if not owner.ready:
            return Applied(0, len(ids))
        first = policy.first_missing(priority)
        if first >= 0:
            raise ConfigError(f"priority {first} of {len(priority)} is NaN: priorities are finite, 0 or more")
        self.checked(priority)
        with owner.lock:
            owner.catch_up()
            return owner.table.prioritize(ids, priority)

    def _when_insertable(self, write: Callable[[], int], timeout_s: float | None) -> int:
        """What ``write`` returns, called under the lock as soon as the limiter lets one item in."""
        owner, written = self._owner, []

        def attempt() -> bool:
            owner.check_open()
            if not owner.may_insert(1):
                return False
            written.append(write())
            owner.waiters.ring()
            return True

        def reason() -> str | None:
            limits = owner.limits
            return None if limits is None or owner.may_insert(1) else limits.why_not_insert(1)

        owner.waiters.until(attempt, "insert", reason, timeout_s)
        return written[0]

    def _streams(self, stream: Any, count: int) -> Ids:
        table = self._owner.table
        if isinstance(stream, list | tuple | np.ndarray):
            if len(stream) != count:
                raise SchemaError(f"{len(stream)} streams are given for {count} rows: one for each, or one for all")
            return table.numbers(stream.tolist() if isinstance(stream, np.ndarray) else stream)
        return np.full(count, table.stream(stream), np.int64)

    def _priorities(self, priority: Any, count: int) -> Floats:
        if priority is None:
            return self.checked(np.full(count, _NAN)) if self._owner.prioritized else _NO_PRIORITIES
        given = floats_of(priority, "priority")
        if given.shape != (count,):
            raise ConfigError(f"priority has shape {given.shape} for {count} rows: one number for each")
        return self.checked(given)

    def checked(self, priority: Floats) -> Floats:
        """``priority``, if everyone here who goes by priorities allows it."""
        owner = self._owner
        if not owner.prioritized:
            raise Unsupported(f"this table's {owner.sampler!r} and {owner.remover!r} use no priorities: leave them out")
        for one in owner.table.prioritized:
            one.check(priority)
        return priority


def _from(fields: Ids, i: int) -> Ids:
    """The same sources, beginning with step ``i``."""
    moved = fields.copy()
    moved[:, 3] += i * moved[:, 4]
    return moved
