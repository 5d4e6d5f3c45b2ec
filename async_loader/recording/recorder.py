"""Environments of Gymnasium that add their steps to a table: one, or a vector of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, Timeout, of_extra
from async_loader.name_hints import explain_wrong_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.opening import (
    EpisodeStream,
    Recording,
    copied,
    stream_numbers,
)
from async_loader.table import Table, VectorWriter, Writer

of_extra("gymnasium", "demo")

import gymnasium  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

_Step = tuple[Any, Any, Any, Any, dict[str, Any]]


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
        also with a writer that is given.
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
        wanted = schema_of(env, stack=stack, fields=fields)
        self._open(table, "writer", stream, wanted)
        if stream is None and not self._owned:
            stream = (self._writer.stream, next(stream_numbers))
        self._episode = EpisodeStream(self._writer, self._fields, stream, timeout_s)

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
        return self._step(action)  # type: ignore[no-any-return]

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

    def _checked(self, action: Any) -> Any:
        self._fields.check_extra(self._extra)
        if not self._episode.begun:
            raise ConfigError("no episode has begun: call reset() before step()")
        return copied(action)

    def _add(self, action: Any, made: _Step, extra: dict[str, Any]) -> None:
        obs, reward, terminated, truncated, _ = made
        self._episode.add(action, reward, obs, terminated, truncated, extra)

    def _cut(self) -> None:
        self._pending, self._extra = None, {}
        self._episode.cut()


class VectorRecorder(Recording, gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector of environments whose steps are added to a table, one stream for each.

    As `Recorder`. How the environments reset is read from their ``metadata["autoreset_mode"]``, and
    every mode of Gymnasium works; with DISABLED also ``reset(options={"reset_mask": mask})``. With
    SAME_STEP an environment has to return a new array in each step: one that writes into the same
    array overwrites the last observation of its episode by its reset.

    Threads: one at a time.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv
    table : Table | VectorWriter
        A table, or what ``table.vector_writer(envs)`` returns. Such a writer is for
        one recorder at a time.
    stack, fields, timeout_s : optional
        As of `Recorder`. Values of `record` are arrays ``[envs, ...]``.

    Raises
    ------
    SchemaError
        For a table without a field that a recorder writes. The first step names another misfit.
    """

    @explain_wrong_names
    def __init__(
        self,
        envs: gymnasium.vector.VectorEnv[Any, Any, Any],
        table: Table | VectorWriter,
        *,
        stack: int = 1,
        fields: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if not isinstance(envs, gymnasium.vector.VectorEnv):
            raise ConfigError(
                f"{type(envs).__name__} is no gymnasium.vector.VectorEnv: give "
                "gymnasium.make_vec(...); Recorder records one environment"
            )
        super().__init__(envs)
        wanted = schema_of(envs, stack=stack, fields=fields)
        self._open(table, "vector_writer", envs, wanted)
        if (count := len(self._writer.streams)) != envs.num_envs:
            raise ConfigError(
                f"a writer for {count} environments, and there are {envs.num_envs}: make it as "
                "table.vector_writer(envs)"
            )
        self._timeout_s = timeout_s
        self._obs: Any = None
        self._by_hand = envs.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
        self._over = np.zeros(envs.num_envs, np.bool_)  # ended, and to be reset by the program

    def step(self, actions: Any) -> _Step:
        """Make a step of every environment, and add them all. As `Recorder.step`."""
        return self._step(actions)  # type: ignore[no-any-return]

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,  # a list too: VectorEnv's annotation is narrow
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; those under way end as truncated, with their last observations.

        Steps that could not be added are given up.
        """
        self._check_open()
        mask = None if options is None else options.get("reset_mask")
        self._cut(None if self._pending is not None or self._obs is None else mask)
        obs, info = self.env.reset(seed=seed, options=options)
        self._over &= False if mask is None else ~np.asarray(mask)
        self._obs = copied(obs)
        return obs, info

    def _checked(self, action: Any) -> Any:
        self._fields.check_extra(self._extra)
        if self._obs is None:
            raise ConfigError("no episode has begun: call reset() before step()")
        if self._over.any():
            raise ConfigError(
                f"environments {np.flatnonzero(self._over).tolist()} ended their episodes, and "
                "their autoreset mode is DISABLED: call reset(options={'reset_mask': "
                "terminated | truncated}) before the next step()"
            )
        return copied(action)

    def _add(self, action: Any, made: _Step, extra: dict[str, Any]) -> None:
        obs, reward, terminated, truncated, info = made
        if self._by_hand:
            self._over = np.logical_or(terminated, truncated)
        before, self._obs = self._obs, None
        try:
            self._writer.append(
                obs=before,
                action=action,
                reward=reward,
                next_obs=obs,
                terminated=terminated,
                truncated=truncated,
                info=info,
                timeout_s=self._timeout_s,
                **extra,
            )
        except Timeout:
            self._obs = before
            raise
        self._obs = copied(obs)

    def _cut(self, mask: Any = None) -> None:
        """End the episodes of these environments, of all with ``None``."""
        self._pending, self._extra = None, {}
        self._writer.reset(final_obs=self._obs if self._fields.linked else None, mask=mask)
