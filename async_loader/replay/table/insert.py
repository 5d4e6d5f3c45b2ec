"""Inserts steps: they are checked outside the table's lock, and written under it when the limiter
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from async_loader.errors import Closed, ConfigError, Timeout, Unsupported, WouldDeadlock
from async_loader.lifecycle import seconds, seconds_or_none
from async_loader.replay.arguments import one_float, schema_of_columns
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base.row_format import AWAITS, CURSOR, ENDS, FINAL, SHOWN
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stream_names import EachStream, StreamName, stream_name, stream_names
from async_loader.replay.table.records import Heads, Packed, Rows, RowSource, plain_heads
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.table import Table
from async_loader.schema import Schema

_NAN = float("nan")
_INT64 = np.dtype(np.int64)
T = TypeVar("T")


class _Streams(NamedTuple):
    """The streams of the last batch: a vector of environments names the same ones in every call.

    ``known_to``: the table's numbers of its streams, which hold while the table has this mapping.
    ``heads``: of steps of these streams within their episodes.
    """

    key: object
    known_to: Mapping[Hashable, int]
    numbers: Ids
    heads: bytes


class Inserter(TableSampler):
    """The part of a table's process that inserts steps. Any thread."""

    _last: _Streams | None = None

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
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if type(stream) is not int and type(stream) is not str and type(stream) is not StreamName:
            stream = stream_name(stream)
        table = self._table
        if table is None:
            self.start(Schema.of_step(step))
            table = self.table
        packer, ends = table.packer, final is not None
        # loaded first: Python looks longer for a callable attribute that it calls as a method
        plain = packer.pack_plain
        packed, flags = plain(step, said, ends) or packer.pack(step, said, ends)
        if ends or priority is not None or self.needs_priority or self._limits is not None:
            return self._add_unusual(stream, packed, flags, priority, timeout_s, final)
        with self.lock:
            table = self._table  # another one, after a load
            assert table is not None
            records, number = table.records, table.streams.get(stream)
            at = records.count
            if (
                number is None
                or not 0 < at < records.limit - 1
                or records.large
                or not records.single
                or self.waiters.any_waits
            ):
                return self._put(stream, packed, flags, _NAN, None)
            # as in `_put`, in half the time
            place, pack_into = at * records.size, records.pack_into
            pack_into(records.memory, place, number, flags, _NAN, packed[0])
            records.count = at + 1
            return records.first + at

    def _add_unusual(
        self,
        stream: Hashable,
        packed: Packed,
        flags: int,
        priority: object,
        timeout_s: float | None,
        final: object,
    ) -> int:
        """As `add`, for a packed step."""
        last = None if final is None else self.step_packer.final(final)
        given = _NAN
        if priority is not None or self.needs_priority:
            given = self._priority(priority)

        def put() -> int:
            return self._put(stream, packed, flags, given, last)

        if self._limits is None:
            with self.lock:
                return put()
        return self._when_insertable(put, 1, timeout_s, 1 if last is None else 2)

    def _put(
        self,
        stream: Hashable,
        packed: Packed,
        flags: int,
        priority: float,
        final: Packed | None,
    ) -> int:
        """Add a packed step and its final observation. Return its id. Under the lock."""
        table = self.table
        records = table.records
        if records.limit == 1:
            self.own()
        number = table.streams.get(stream)
        if number is None:
            number = table.stream(stream)
        if not records.single:
            table.single()
        at = records.count
        if not at:
            records.first = int(table.g[CURSOR])
        id_ = records.first + at
        records.put(packed, number, flags, priority)
        if final is not None:
            records.put(final, number, FINAL, _NAN)
        if records.count >= records.limit or self.waiters.any_waits:
            self._write(table)
            return int(table.ids_at(at, 1)[0])
        return id_

    def _write(self, table: Table) -> None:
        """Write what was gathered, and wake waiting calls."""
        try:
            table.finish()
        finally:
            self.waiters.ring()

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
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        table = self._table
        if table is None:
            self.start(schema_of_columns(batch))
            table = self.table
        limited = self._limits is not None  # by the items that ends make too
        rows = table.packer.rows(batch, said, final_obs, limited)
        if priority is not None or self.needs_priority:
            rows.prioritize(self._priorities(priority, rows.steps))
        if not limited:
            with self.lock:
                return self._put_rows(rows, stream)
        if not whole:
            return self._put_as_allowed(rows, stream, timeout_s)
        return self._when_insertable(
            lambda: self._put_rows(rows, stream), rows.steps, timeout_s, len(rows)
        )

    def _put_rows(self, rows: Rows, stream: object) -> Ids:
        """Add many records. Return the ids of their steps. Under the lock."""
        table = self.table
        if table.records.limit == 1:
            self.own()
        streams = self._numbers(table, stream, rows.steps)
        packed = streams.heads if rows.heads is None else rows.of(streams.numbers).tobytes()
        place = table.gather_batch(rows.columns, packed, rows.count)
        if place >= 0:
            ids = table.ids_at(place, rows.count)
        else:
            table.finish()
            ids = np.empty(rows.count, np.int64)
            table.write(_source(table, rows, streams.numbers), rows.count, ids)
        if self.waiters.any_waits:
            self._write(table)
        return ids if rows.steps == rows.count else ids[rows.are_steps]

    def _numbers(self, table: Table, stream: object, steps: int) -> _Streams:
        """Return the streams of a batch. Under the lock."""
        if type(stream) is EachStream and stream.whole is not None and len(stream) == steps:
            whole = self._numbers(table, stream.whole, len(stream.whole))
            return _Streams(None, table.streams, *_plain_steps(whole.numbers.take(stream.rows)))
        last, key = self._last, _key(stream)
        if last is not None and last.known_to is table.streams and len(last.numbers) == steps:
            try:
                if type(key) is type(last.key) and key == last.key:
                    return last
            except ValueError:  # a list with arrays
                pass
        names = stream_names(stream, steps)
        if isinstance(names, list):
            numbers = table.numbers(names)
        else:
            numbers = np.full(steps, table.stream(names), np.int64)
        key = key.copy() if isinstance(key, list) else key
        self._last = _Streams(key, table.streams, *_plain_steps(numbers))
        return self._last

    def _put_as_allowed(self, rows: Rows, stream: object, timeout_s: float | None) -> Ids:
        """Add many records as the limiter allows them; other threads may insert between."""
        at, ids = 0, np.full(len(rows), -1, np.int64)

        def attempt() -> bool:
            nonlocal at
            table, before = self.own(), at
            numbers = self._numbers(table, stream, rows.steps).numbers
            at = self.insert(_source(table, rows, numbers), ids, at)
            if at > before:
                self.waiters.ring()
            return at == len(rows)

        def why_not() -> str | None:
            assert rows.heads is not None
            awaits = int(rows.heads["flags"][at]) & AWAITS
            return self.why_not_insert(1, 2 if awaits else 1)

        try:
            self.waiters.until(attempt, "insert", why_not, timeout_s)
        except (Timeout, WouldDeadlock, Closed) as error:
            steps_in = int(np.count_nonzero(rows.are_steps[:at]))
            made = type(error)(f"{steps_in} of {rows.steps} steps are in: {error}")
            made.steps_in = steps_in  # type: ignore[union-attr]
            raise made from None
        return ids[rows.are_steps]

    def insert(self, source: RowSource, ids: Ids, start: int = 0, ahead: int = 0) -> int:
        """Write records from ``start`` on as far as limiter and room allow now. Return the first
        that was not written. Under the lock.

        ``ahead``: drawn items that still hold their places.
        """
        while (stop := self._allowed(source.heads, start, ahead)) > start:
            self.table.write(source, stop, ids, start)
            start = stop
        return start

    def _allowed(self, heads: Heads, start: int, ahead: int) -> int:
        """Return up to which record may be written now."""
        limits, table = self.limits, self.table
        if limits is None or start == len(heads):
            return len(heads)
        flags = heads["flags"][start:]
        steps, ended = flags & FINAL == 0, flags & ENDS != 0
        alone = ~(steps | ended)  # a final observation, which its step brings along
        # an end may make two items: its own step's, and that of the step before
        wanted = np.cumsum(steps.astype(np.int64) + ended) - ended - alone
        count = int(np.searchsorted(wanted, max(0, limits.insertable() - ahead), "right"))
        if not table.keeps or not count:
            return start + count
        rows = np.cumsum(steps | alone | (flags & SHOWN != 0))
        room = table.room(int(rows[0] + alone[1:2].sum()))
        count = min(count, int(np.searchsorted(rows, room, "right")))
        if 0 < count < len(flags) and alone[count]:
            count -= 1  # a final observation stays with its step
        return start + count

    def end_episodes(
        self,
        streams: Sequence[Hashable],
        final_obs: object,
        flags: int,
        timeout_s: float | None = None,
    ) -> None:
        """End the episodes of these streams after their last steps.

        Waits while a queue has no row for ``final_obs``, which is of one stream.
        """
        seconds_or_none("timeout_s", timeout_s)
        if not self.ready:
            return
        columns = []
        if final_obs is not None:
            packer, flags = self.step_packer, flags | SHOWN
            for i, value in zip(packer.followed, packer.final_values(final_obs), strict=True):
                columns.append(np.asarray(value, packer.schema.fields[i].dtype)[np.newaxis])

        def numbers() -> list[int]:
            known = self.table.streams
            return [known[stream] for stream in streams if stream in known]

        def attempt() -> bool:
            table = self.own()
            done = not columns or self.has_room(1)
            if done:
                table.end(numbers(), flags, columns)
                self.waiters.ring()
            return done

        self.waiters.until(attempt, "insert", lambda: self.table.why_full(), timeout_s)

    def _when_insertable(
        self, write: Callable[[], T], count: int, timeout_s: float | None, rows: int
    ) -> T:
        """Call ``write`` under the lock as soon as the limiter allows ``count`` items and ``rows``
        rows are free. Return what it returns.
        """
        made: list[T] = []

        def attempt() -> bool:
            self.check_open()
            if not self.may_insert(count, rows):
                self._check_fits(count, rows)
                return False
            try:
                made.append(write())
            finally:
                self.waiters.ring()
            return True

        self.waiters.until(attempt, "insert", lambda: self.why_not_insert(count, rows), timeout_s)
        return made[0]

    def _check_fits(self, count: int, rows: int) -> None:
        """Raise ConfigError if ``count`` steps, in ``rows`` rows, can never be inserted at once."""
        limits, table = self.limits, self.table
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
        given = priority_rules.column_of(priority, count)
        priority_rules.check_given(given)
        return self.checked(given)

    def _check_used(self) -> None:
        """Raise Unsupported for a table without priorities."""
        if (why := self.no_priorities) is not None:
            raise Unsupported(why)

    def checked(self, priority: Floats) -> Floats:
        """Return the priorities if each sampler and remover that uses them allows them.

        Raises ConfigError.
        """
        self._check_used()
        for one in self.table.prioritized:
            one.check(priority)
        return priority


def _plain_steps(numbers: Ids) -> tuple[Ids, bytes]:
    """Return the numbers of streams, and the heads of steps of these within their episodes."""
    heads = plain_heads(len(numbers))
    heads["stream"] = numbers
    return numbers, heads.tobytes()


def _source(table: Table, rows: Rows, streams: Ids) -> RowSource:
    """Return the source of these records."""
    rows.columns = [np.ascontiguousarray(column) for column in rows.columns]
    return RowSource.of(table.fields_of(rows.columns), rows.of(streams))


def _key(stream: Any) -> object:
    """Return what is cheap to compare with the streams of another batch."""
    if type(stream) in (EachStream, range, list, int, str, StreamName):
        return stream
    if type(stream) is np.ndarray and stream.dtype is _INT64 and stream.ndim == 1:
        return stream.tobytes()
    return object()
