"""The writer of the table's own process: it writes under the table's lock, and counts its steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from async_loader.errors import CannotSend
from async_loader.lifecycle import seconds_or_none
from async_loader.names import explain_wrong_attributes
from async_loader.replay.arguments import count_of
from async_loader.replay.base.row_format import TRUNCATED
from async_loader.replay.step_writer import StepWriter
from async_loader.replay.stream_names import MANY_STREAMS, stream_name, stream_names
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.table_state import TableState
from async_loader.replay.tally import Tally
from async_loader.schema import Schema
from async_loader.table import Ids


@explain_wrong_attributes
class LocalWriter(StepWriter):
    """Adds the steps of an actor in the table's process. Made by `ReplayBuffer.writer`.

    Threads: one at a time. A call that Ctrl-C interrupts has added its step or has not, and `steps`
    says which.

    Parameters
    ----------
    table_state, inserter : TableState, Inserter
    stream : hashable
        A name that `stream_name` has made.
    """

    def __init__(self, table_state: TableState, inserter: Inserter, stream: Hashable) -> None:
        super().__init__(stream)
        self._table_state, self._in = table_state, inserter
        self._tally = Tally(table_state)
        # Named streams, whose episodes `close` ends too.
        self._others: dict[Hashable, None] = {}
        self._many = MANY_STREAMS

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""
        return self._table_state.schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added. It never falls."""
        return self._tally.steps

    def _append(
        self,
        values: dict[str, Any],
        flags: int,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> int:
        name = self.stream if stream is None else self._named(stream)
        tally = self._tally
        ids = tally.begin_one()
        new = self._in.add(values, name, flags, priority, timeout_s, final_obs, ids)
        tally.end_one()
        return new

    def _extend(
        self,
        values: dict[str, Any],
        flags: Ids | None,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> Ids:
        names: Any = self.stream
        if stream is not None:
            known = self._table_state.table.streams if self._table_state.ready else ()
            names = stream_names(stream, count_of(values), known)
            for name in names if isinstance(names, list) else (names,):
                self._named(name)
        return self._insert(values, names, flags, final_obs, priority, timeout_s)

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: Sequence[Hashable],
        *,
        terminated: object,
        truncated: object,
        final_obs: object,
        priority: object,
        timeout_s: float | None,
    ) -> Ids:
        """Add all rows or none, each to a stream whose end is the caller's task.

        For a `VectorWriter`.
        """
        if self._closed:
            raise self._closed_error()
        values = dict(batch)
        ends = self._ends if self._ends.known else self._look_up_ends()
        flags = ends.into_columns(values, terminated, truncated)
        return self._insert(values, streams, flags, final_obs, priority, timeout_s, whole=True)

    def _insert(
        self,
        values: dict[str, Any],
        names: object,
        flags: Ids | None,
        final_obs: object,
        priority: object,
        timeout_s: float | None,
        whole: bool = False,
    ) -> Ids:
        tally = self._tally
        ids = self._in.extend(
            values, names, priority, timeout_s, final_obs, flags, ids=tally.begin, whole=whole
        )
        tally.end(len(ids))
        return ids

    def _end_episode(
        self, stream: Hashable, flags: int, final_obs: object, timeout_s: float | None
    ) -> None:
        self._in.end_episodes((stream,), final_obs, flags, timeout_s)

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        self._in.end_episodes(streams, None, TRUNCATED, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Do nothing: a step is in the table when `append` returns."""
        seconds_or_none("timeout_s", timeout_s)
        if self._closed:
            raise self._closed_error()

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, as `end_episode` without arguments does. May be called again."""
        seconds_or_none("timeout_s", timeout_s)
        if not self._closed:
            if not self._table_state.foreign and not self._table_state.closed:
                self._in.end_episodes((self.stream, *self._others), None, TRUNCATED, timeout_s)
            self._closed = True

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a writer stays in its process: send table.writer_handle(), and call open() of it there"
        )

    def _named(self, stream: Hashable) -> Hashable:
        """Return the name of a stream beside the writer's own, and remember it."""
        name = stream if type(stream) is str or type(stream) is int else stream_name(stream)
        if name not in self._others:
            if len(self._others) >= self._many:
                self._forget_ended()
            self._others[name] = None
        return name

    def _forget_ended(self) -> None:
        table_state = self._table_state
        with table_state.lock:
            table = table_state.own()
            open_ = [
                name
                for name in self._others
                if name in table.streams and table.is_open(table.streams[name])
            ]
        self._others, self._many = dict.fromkeys(open_), max(MANY_STREAMS, 2 * len(open_))
