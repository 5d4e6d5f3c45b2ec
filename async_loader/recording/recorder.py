"""An environment of Gymnasium that adds its steps to a table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import gymnasium

from async_loader.errors import ConfigError, Timeout
from async_loader.names import explain_wrong_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.opening import EpisodeStream, Recording, copied, own_streams, writer_of
from async_loader.table import Table, Writer

_Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Recorder(Recording, gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps are added to a table while a usual loop plays it.

    Fields: ``obs``, ``action``, ``reward``, ``terminated``, ``truncated``, and ``next_obs`` through
    ``Field(next="next_obs")`` or a field of its own. A `reset` within an episode ends it as
    truncated, with its last observation.

    Threads: one at a time.

    Parameters
    ----------
    env : gymnasium.Env
    table : Table | Writer
        A table here or of a feeder, or a writer of one, also of another process. A table without a
        schema gets that of the environment's spaces, `schema_of`. A writer that is given stays
        open; several recorders may write with it, each to a stream of its own.
    stack, fields : optional
        As of `schema_of`, for a table without a schema.
    stream : hashable, optional
        Name of the stream of steps in the table, for this recorder alone. By default a new one;
        with a writer that is given, the writer's own for the first recorder of it.
    timeout_s : float, optional
        How long `step` waits for the table's limiter. After a Timeout `step` may be called again:
        then it adds the step, and returns what the environment had returned.

    Raises
    ------
    SchemaError
        For a table without a field that a recorder writes. The first step names another misfit.
    """

    @explain_wrong_names
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        table: Table | Writer,
        *,
        stack: int = 1,
        fields: Mapping[str, Any] | None = None,
        stream: Hashable | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{type(env).__name__} is no gymnasium.Env: give Recorder(gymnasium.make(...), "
                "table); VectorRecorder records a vector of environments, ParallelRecorder one of "
                "pettingzoo"
            )
        super().__init__(env)
        self._opened = writer_of(table, schema_of(env, stack=stack, fields=fields), stream)
        self._writer = self._opened.writer
        self._fields = self._opened.fields()
        if stream is None and (number := own_streams(self._writer, 1)[0]):
            stream = (self._writer.stream, number)
        self._episode = EpisodeStream(self._writer, self._fields, stream, timeout_s)
        self._extra: dict[str, Any] = {}
        # Of a step that the environment has made and the table has not taken yet.
        self._pending: tuple[Any, _Step, dict[str, Any]] | None = None

    def step(self, action: Any) -> _Step:
        """Make a step of the environment, and add it.

        Raises
        ------
        SchemaError
            Before the environment's step if `record` lacks a field or has one too many; after it
            if a value does not fit.
        Timeout
            The environment has made its step: the call may be made again, to add it.

        After any other exception out of it call `reset`.
        """
        self._check_open()
        pending, self._pending = self._pending, None
        if pending is None:
            self._fields.check_extra(self._extra)
            if not self._episode.begun:
                raise ConfigError("no episode has begun: call reset() before step()")
            kept = copied(action)  # the environment may write into the one that it is given
            pending = kept, self.env.step(action), self._extra
            self._extra = {}
        action, made, extra = pending
        obs, reward, terminated, truncated, _ = made
        try:
            self._episode.add(action, reward, obs, terminated, truncated, extra)
        except Timeout:
            self._pending = pending
            raise
        return made

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that is under way ends as truncated.

        A step that could not be added is given up.
        """
        self._check_open()
        self._cut()
        obs, info = self.env.reset(seed=seed, options=options)
        self._episode.begin(obs)
        return obs, info

    def _cut(self) -> None:
        self._pending, self._extra = None, {}
        self._episode.cut()
