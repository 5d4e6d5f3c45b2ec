"""A vector of environments of Gymnasium that adds its steps to a table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import gymnasium

from async_loader.errors import Closed, ConfigError
from async_loader.names import explain_wrong_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.episode_stream import copied
from async_loader.recording.opening import GONE, vector_writer_of
from async_loader.recording.resets import Resets
from async_loader.table import Table, VectorWriter

_Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class VectorRecorder(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector of environments whose steps are added to a table, one stream for each.

    As `Recorder`. How the environments reset is read from their ``metadata["autoreset_mode"]``, and
    every mode of Gymnasium works; with DISABLED also ``reset(options={"reset_mask": mask})``. With
    SAME_STEP an environment has to return a new array in each step: one that writes into the same
    array overwrites the last observation of its episode by its reset, which a RuntimeWarning tells
    where it can be seen.

    Threads: one at a time.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv
    table : Table | VectorWriter
        A table, or what ``table.vector_writer(envs)`` returns. Such a writer is for the steps of
        one vector: after this recorder is closed another may write with it.
    stack, fields, timeout_s : optional
        As of `Recorder`. Values of `record` are arrays ``[envs, ...]``.

    Raises
    ------
    SchemaError
        Names the field in which the environments and the table differ.
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
        self._opened = vector_writer_of(table, envs, schema_of(envs, stack=stack, fields=fields))
        self._writer = self._opened.writer
        self._fields = self._opened.fields(envs)
        self._timeout_s = timeout_s
        self._obs: Any = None
        self._extra: dict[str, Any] = {}
        self._pending: tuple[Any, _Step, dict[str, Any]] | None = None
        self._before: int | None = None
        self._seen = 0  # the writer's steps after the last call
        self._ended = False
        self._resets = Resets(envs)

    def record(self, **fields: Any) -> None:
        """Give values ``[envs, ...]`` of the next step that no environment knows. As
        `Recorder.record`.
        """
        self._extra.update(fields)

    def step(self, actions: Any) -> _Step:
        """Make a step of every environment, and add them all. As `Recorder.step`."""
        if self._ended:
            raise Closed("this recorder was closed: make another")
        if self._pending is None:
            self._fields.check_extra(self._extra)
            if self._obs is None:
                raise ConfigError("no episode has begun: call reset() before step()")
            self._resets.check()
            self._check_alone()
            kept = copied(actions)  # environments may write into those that they are given
            made = self.env.step(actions)
            self._resets.note(made)
            self._pending = kept, made, self._extra
            self._extra = {}
        actions, made, extra = self._pending
        obs, reward, terminated, truncated, info = made
        if self._before is None or self._writer.steps == self._before:
            self._check_alone()
            self._before = self._writer.steps
            try:
                self._writer.append(
                    obs=self._obs,
                    action=actions,
                    reward=reward,
                    next_obs=obs,
                    terminated=terminated,
                    truncated=truncated,
                    info=info,
                    timeout_s=self._timeout_s,
                    **extra,
                )
            except BaseException:
                if self._writer.steps == self._before:
                    self._before = None  # others may add with this writer before the next call
                else:
                    self._go_on(obs)  # the steps are in, and a reset may come next
                raise
        self._go_on(obs)
        self._pending = self._before = None
        return made

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,  # a list too: VectorEnv's annotation is narrow
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; those under way end as truncated, with their last observations.

        Steps that could not be added are given up.
        """
        if self._ended:
            raise Closed("this recorder was closed: make another")
        mask = None if options is None else options.get("reset_mask")
        ended = None if self._pending is not None or self._obs is None else mask
        self._cut(ended)
        if ended is None:  # else episodes go on, which another recorder may have broken off
            self._seen = self._writer.steps
        obs, info = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        self._resets.forget(mask)
        self._obs = copied(obs)
        return obs, info

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps are in the table, which may be elsewhere."""
        self._writer.flush(timeout_s)

    def close(self, **kwargs: Any) -> None:
        """End the episodes as truncated, `flush`, and close the environments."""
        try:
            if not self._ended:
                self._ended = True
                with contextlib.suppress(*GONE):
                    self._cut(None)
                self._opened.finish()
        finally:
            self.env.close(**kwargs)

    def _go_on(self, obs: Any) -> None:
        self._obs, self._seen = copied(obs), self._writer.steps

    def _check_alone(self) -> None:
        """Raise ConfigError if others have added steps with this writer, to the same streams."""
        if self._writer.steps != self._seen:
            raise ConfigError(
                "another recorder has added steps with this writer, which has a stream for each of "
                "its environments, and these episodes cannot go on: give each recorder the table, "
                "or close() one before the next writes; reset() begins new episodes"
            )

    def _cut(self, mask: Any) -> None:
        """End the episodes of these environments, of all with ``None``."""
        self._pending, self._before, self._extra = None, None, {}
        ours = self._writer.steps == self._seen  # else the open episodes are of another recorder
        final = self._obs if self._fields.linked and ours else None
        self._writer.reset(final_obs=final, mask=mask)
