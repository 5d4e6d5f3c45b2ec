"""The writer of this process: it knows how episodes end, and counts what it has added."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Never

from async_loader.errors import CannotSend, Closed, ConfigError
from async_loader.lifecycle import seconds_or_none
from async_loader.names import (
    by_name,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay.arguments import one_of
from async_loader.replay.base.row_format import TERMINATED, TRUNCATED
from async_loader.replay.stream_names import stream_name, stream_names
from async_loader.replay.table.insert import Inserter
from async_loader.replay.table.step_packer import Ends, count_of
from async_loader.replay.table.table_state import TableState
from async_loader.replay.tally import Tally
from async_loader.schema import Schema
from async_loader.table import Ids, Streams

_MANY = 256
"""Streams beside the writer's own, from which on those whose episodes have ended are forgotten."""


@explain_wrong_attributes
class LocalWriter:
    """Adds the steps of an actor in the table's process. A `async_loader.table.Writer`, made by
    `ReplayBuffer.writer`.

    Threads: one at a time. A call that Ctrl-C interrupts has added its step or has not, and `steps`
    says which.

    Parameters
    ----------
    table_state, inserter : TableState, Inserter
    stream : hashable
        A name that `stream_name` has made.

    Attributes
    ----------
    stream : hashable
        Of the steps that name none.
    """

    def __init__(self, table_state: TableState, inserter: Inserter, stream: Hashable) -> None:
        self._table_state, self._in, self.stream = table_state, inserter, stream
        self._tally = Tally(table_state)
        self._closed = False
        self._ends: tuple[Schema | None, Ends] = (None, Ends(None))
        # streams that were named, whose episodes `close` ends too
        self._others: dict[Hashable, None] = {}
        self._many = _MANY

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""
        return self._table_state.schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added. It never falls."""
        return self._tally.steps

    @by_name
    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: Any = False,
        truncated: Any = False,
        final_obs: Any = None,
        stream: Hashable | None = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> int:
        """Add a stream's next step: what was observed, what was done, what it gave, and whether the
        episode ended with it.

        Parameters
        ----------
        step : mapping, optional
            As in `ReplayBuffer.add`.
        terminated, truncated : bool
            Whether nothing comes after this step, or the episode was cut off after it. Stored too,
            where the schema (or the first step, if there is no schema) has fields of these names,
            and the step does not say it itself.
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
        SchemaError, Timeout, WouldDeadlock, Closed
            As `ReplayBuffer.add`. Nothing was written.
        """
        if misplaced:
            raise misplaced_fields("LocalWriter.append", misplaced)
        if self._closed:
            raise closed_writer()
        name = self.stream if stream is None else self._named(stream)
        values = fields if step is None else dict(one_of(step, fields, "step"))
        flags = self._how_it_ends().into(values, terminated, truncated)
        tally = self._tally
        new = self._in.add(values, name, flags, priority, timeout_s, final_obs, tally.begin_one())
        tally.end_one()
        return new

    @by_name
    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: Any = False,
        truncated: Any = False,
        final_obs: Any = None,
        stream: Streams | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids:
        """Add many steps. As `append`, and as `ReplayBuffer.extend`.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows]
        stream : hashable | sequence or array [rows], optional
            One for all rows, or each row's own. By default the writer's.
        """
        if misplaced:
            raise misplaced_fields("LocalWriter.extend", misplaced, "batch")
        if self._closed:
            raise closed_writer()
        values = dict(one_of(batch, fields, "batch"))
        names: Any = self.stream
        if stream is not None:
            known = self._table_state.table.streams if self._table_state.ready else ()
            names = stream_names(stream, count_of(values), known)
            for name in names if isinstance(names, list) else (names,):
                self._named(name)
        return self._extend(
            values, terminated, truncated, final_obs, names, priority, timeout_s, whole=False
        )

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: Sequence[Hashable],
        *,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        priority: Any,
        timeout_s: float | None,
    ) -> Ids:
        """As `extend`, all rows or none, each to a stream whose end is the caller's business.

        For a `VectorWriter`.
        """
        if self._closed:
            raise closed_writer()
        return self._extend(
            dict(batch), terminated, truncated, final_obs, streams, priority, timeout_s, whole=True
        )

    def _extend(
        self,
        values: dict[str, Any],
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        names: Any,
        priority: Any,
        timeout_s: float | None,
        whole: bool,
    ) -> Ids:
        said = self._how_it_ends().into_columns(values, terminated, truncated)
        tally = self._tally
        ids = self._in.extend(
            values, names, priority, timeout_s, final_obs, said, ids=tally.begin, whole=whole
        )
        tally.end(len(ids))
        return ids

    @explain_wrong_names
    def end_episode(
        self,
        *,
        final_obs: Any = None,
        stream: Hashable | None = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """See `ReplayBuffer.end_episode`."""
        if self._closed:
            raise closed_writer()
        name = self.stream if stream is None else stream_name(stream)
        self._in.end_episodes((name,), final_obs, how_ended(terminated, truncated), timeout_s)

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        self._in.end_episodes(streams, None, TRUNCATED, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Do nothing: a step is in the table when `append` returns.

        Other writers have to wait for that.
        """
        seconds_or_none("timeout_s", timeout_s)
        if self._closed:
            raise closed_writer()

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, as `end_episode` without arguments does.

        May be called again; `append` raises Closed then.
        """
        seconds_or_none("timeout_s", timeout_s)
        if not self._closed:
            if not self._table_state.foreign and not self._table_state.closed:
                self._in.end_episodes((self.stream, *self._others), None, TRUNCATED, timeout_s)
            self._closed = True

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalWriter stream={self.stream!r} steps={self.steps} {'closed' if self._closed else 'open'}>"

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a writer stays in its process: send table.writer_handle(), and call open() of it there"
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _named(self, stream: Hashable) -> Hashable:
        """The name of a stream beside the writer's own, which is remembered."""
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
        self._others, self._many = dict.fromkeys(open_), max(_MANY, 2 * len(open_))

    def _how_it_ends(self) -> Ends:
        schema, ends = self._ends
        if schema is not self._table_state.schema:
            schema = self._table_state.schema
            ends = Ends(schema)
            self._ends = (schema, ends)
        return ends


def how_ended(terminated: bool, truncated: bool) -> int:
    """The flag of an episode that ends after its last step; neither counts as truncated."""
    if terminated and truncated:
        raise ConfigError(
            "terminated and truncated: an episode ends in one way, give the one that counts"
        )
    return TERMINATED if terminated else TRUNCATED


def closed_writer() -> Closed:
    return Closed("this writer was closed: get another from the buffer")
