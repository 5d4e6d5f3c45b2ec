"""What the writers of this process and of other processes share: how a call is taken apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Never, Self

from async_loader.errors import Closed
from async_loader.names import by_name, explain_wrong_names, misplaced_fields
from async_loader.replay.arguments import one_of
from async_loader.replay.stream_names import stream_name
from async_loader.replay.table.episode_ends import Ends, how_ended
from async_loader.schema import Schema
from async_loader.table import Ids, Streams


class StepWriter(ABC):
    """The front of a `async_loader.table.Writer`: arguments, ends of episodes, ``with`` blocks.

    A subclass writes what the front has taken apart. One call of `append` enters one method of it.

    Parameters
    ----------
    stream : hashable
        A name that `stream_name` has made.

    Attributes
    ----------
    stream : hashable
        The stream of steps for which none is named.
    """

    _remedy = "get another from the buffer"
    """How to go on after `close`."""

    def __init__(self, stream: Hashable) -> None:
        self.stream = stream
        self._closed = False
        self._ends = Ends(None)

    @property
    @abstractmethod
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps that this writer has added. It never falls."""

    # -- adding ------------------------------------------------------------------------------------

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
            The limiter allows no insertion, or writers of other processes hold all rows. Nothing
            was written.
        Closed, Broken
            The writer or the table was closed, or the table's process has died. Nothing was
            written.
        """
        if misplaced:
            raise misplaced_fields(f"{type(self).__name__}.append", misplaced)
        if self._closed:
            raise self._closed_error()
        ends = self._ends if self._ends.known else self._look_up_ends()
        values = fields if step is None else dict(one_of(step, fields, "step"))
        flags = ends.into(values, terminated, truncated)
        return self._append(values, flags, final_obs, stream, priority, timeout_s)

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
        SchemaError, Closed, Broken
            As `append`.
        Timeout, WouldDeadlock
            As `append`; the message says how many rows were written.
        """
        if misplaced:
            raise misplaced_fields(f"{type(self).__name__}.extend", misplaced, "batch")
        if self._closed:
            raise self._closed_error()
        values = dict(one_of(batch, fields, "batch"))
        ends = self._ends if self._ends.known else self._look_up_ends()
        flags = ends.into_columns(values, terminated, truncated)
        return self._extend(values, flags, final_obs, stream, priority, timeout_s)

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
        self._end_episode(name, how_ended(terminated, truncated), final_obs, timeout_s)

    def _look_up_ends(self) -> Ends:
        self._ends = Ends(self.schema)
        return self._ends

    # -- what a subclass does ----------------------------------------------------------------------

    @abstractmethod
    def _append(
        self,
        values: dict[str, Any],
        flags: int,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> int:
        """Write one step. ``flags``: how its episode ends, beside what its fields say."""

    @abstractmethod
    def _extend(
        self,
        values: dict[str, Any],
        flags: Ids | None,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> Ids:
        """Write many steps. ``flags``: as for `_append`, ``[rows]``; ``None``: no flags."""

    @abstractmethod
    def _end_episode(
        self, stream: Hashable, flags: int, final_obs: object, timeout_s: float | None
    ) -> None:
        """End the open episode of a stream, if it has one."""

    @abstractmethod
    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps that were added are in the table."""

    @abstractmethod
    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, as `end_episode` without arguments does. May be called again."""

    def _closed_error(self) -> Closed:
        return Closed(f"this writer was closed: {self._remedy}")

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} stream={self.stream!r} steps={self.steps} {state}>"
