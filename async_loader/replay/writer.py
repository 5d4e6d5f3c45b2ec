"""The writer of the table's own process: it writes under the table's lock, and counts its steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Never

from async_loader.errors import CannotSend, Closed, Timeout, WouldDeadlock
from async_loader.lifecycle import ClosedAtExit, seconds_or_none
from async_loader.name_hints import (
    by_name,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay.arguments import count_of, one_of
from async_loader.replay.base.row_format import TRUNCATED
from async_loader.replay.episode_ends import Ends, how_ended
from async_loader.replay.stream_names import MANY_STREAMS, stream_name, stream_names
from async_loader.replay.table.insert import Inserter
from async_loader.schema import Schema
from async_loader.table import Ids, Streams


@explain_wrong_attributes
class LocalWriter(ClosedAtExit):
    """Adds the steps of an actor in the table's process. Made by `ReplayBuffer.writer`.

    Threads: one at a time.

    Parameters
    ----------
    table_state : Inserter
    stream : hashable
        A name that `stream_name` has made.
    """

    def __init__(self, table_state: Inserter, stream: Hashable) -> None:
        self.stream = stream
        self._closed = False
        self._ends = Ends(None)
        self._table_state = table_state
        self._steps = 0
        # Named streams, whose episodes `close` ends too.
        self._others: dict[Hashable, None] = {}
        self._many = MANY_STREAMS

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""
        return self._table_state.schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added."""
        return self._steps

    @by_name
    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: object = None,
        truncated: object = None,
        final_obs: object = None,
        stream: Hashable | None = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> int:
        """Add a stream's next step: what was observed and done, and whether the episode ended.

        Parameters
        ----------
        step : mapping, optional
            As in `ReplayBuffer.add`.
        terminated, truncated : bool
            Whether the episode ended with this step, or was cut off after it. Stored too, where
            the schema (or the first step, if there is no schema) has fields of these names and the
            step does not contain them.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.
        stream : hashable, optional
            By default the writer's own.
        priority, timeout_s : optional
            As in `ReplayBuffer.add`.

        Returns
        -------
        int
            The step's id.

        Raises
        ------
        SchemaError
            Names the field that does not fit. Nothing was written.
        Timeout, WouldDeadlock
            The limiter allows no insertion. Nothing was written.
        Closed
            The writer or the table was closed. Nothing was written.
        """
        if misplaced:
            raise misplaced_fields(f"{type(self).__name__}.append", misplaced)
        if self._closed:
            raise self._closed_error()
        values = fields if step is None else dict(one_of(step, fields, "step"))
        flags = self._known_ends().into(values, terminated, truncated)
        name = self.stream if stream is None else self._named(stream)
        new = self._table_state.add(values, name, flags, priority, timeout_s, final_obs)
        self._steps += 1
        return new

    @by_name
    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: object = None,
        truncated: object = None,
        final_obs: object = None,
        stream: Streams | None = None,
        priority: object = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids:
        """Add many steps. As `append`, and as `ReplayBuffer.extend`.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows]
        stream : hashable | sequence or array [rows], optional
            One for all rows, or each row's own. By default the writer's.

        Returns
        -------
        int64 array [rows]

        Raises
        ------
        SchemaError, Closed
            As `append`.
        Timeout, WouldDeadlock
            As `append`; the message says how many rows were written.
        """
        if misplaced:
            raise misplaced_fields(f"{type(self).__name__}.extend", misplaced, "batch")
        if self._closed:
            raise self._closed_error()
        values = one_of(batch, fields, "batch")
        names: Any = self.stream
        if stream is not None:
            names = stream_names(stream, count_of(values))
            for name in names if isinstance(names, list) else (names,):
                self._named(name)
        return self._extend_together(
            values,
            names,
            terminated=terminated,
            truncated=truncated,
            final_obs=final_obs,
            priority=priority,
            timeout_s=timeout_s,
            whole=False,
        )

    @explain_wrong_names
    def end_episode(
        self,
        *,
        final_obs: object = None,
        stream: Hashable | None = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """End a stream's episode after its last step. As `ReplayBuffer.end_episode`."""
        if self._closed:
            raise self._closed_error()
        name = self.stream if stream is None else stream_name(stream)
        self._table_state.end_episodes(
            (name,), final_obs, how_ended(terminated, truncated), timeout_s
        )

    def _known_ends(self) -> Ends:
        if not self._ends.known:
            self._ends = Ends(self.schema)
        return self._ends

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: object,
        *,
        terminated: object,
        truncated: object,
        final_obs: object,
        priority: object,
        timeout_s: float | None,
        whole: bool = True,
    ) -> Ids:
        """Add all rows or none, each to a stream whose end is the caller's task.

        For a `VectorWriter`, and for `extend`.
        """
        if self._closed:
            raise self._closed_error()
        values = dict(batch)
        flags = self._known_ends().into_columns(values, terminated, truncated)
        try:
            ids = self._table_state.extend(
                values, streams, priority, timeout_s, final_obs, flags, whole
            )
        except (Timeout, WouldDeadlock, Closed) as error:
            self._steps += getattr(error, "steps_in", 0)
            raise
        self._steps += len(ids)
        return ids

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        self._table_state.end_episodes(streams, None, TRUNCATED, None)

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
                self._table_state.end_episodes(
                    (self.stream, *self._others), None, TRUNCATED, timeout_s
                )
            self._closed = True

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a writer stays in its process: write from another one to a feeder "
            '(connect("embedded", tables=...) starts one)'
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

    def _closed_error(self) -> Closed:
        return Closed("this writer was closed: get another from the buffer")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} stream={self.stream!r} steps={self.steps} {state}>"
