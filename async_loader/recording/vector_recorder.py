"""A vector of environments of Gymnasium that adds its steps to a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from async_loader.errors import ConfigError, Timeout
from async_loader.names import explain_wrong_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.opening import Recording, copied, vector_writer_of
from async_loader.table import Table, VectorWriter

_Step = tuple[Any, Any, Any, Any, dict[str, Any]]


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
        one recorder: after this one is closed another may write with it.
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
        self._opened = vector_writer_of(table, envs, schema_of(envs, stack=stack, fields=fields))
        self._writer = self._opened.writer
        self._fields = self._opened.fields()
        self._timeout_s = timeout_s
        self._obs: Any = None
        self._extra: dict[str, Any] = {}
        self._pending: tuple[Any, _Step, dict[str, Any]] | None = None
        self._by_hand = envs.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
        self._over = np.zeros(envs.num_envs, np.bool_)  # ended, and to be reset by the program

    def step(self, actions: Any) -> _Step:
        """Make a step of every environment, and add them all. As `Recorder.step`."""
        self._check_open()
        pending, self._pending = self._pending, None
        if pending is None:
            self._fields.check_extra(self._extra)
            if self._obs is None:
                raise ConfigError("no episode has begun: call reset() before step()")
            if self._over.any():
                raise ConfigError(
                    f"environments {np.flatnonzero(self._over).tolist()} ended their episodes, and "
                    "their autoreset mode is DISABLED: call reset(options={'reset_mask': "
                    "terminated | truncated}) before the next step()"
                )
            kept = copied(actions)  # environments may write into those that they are given
            made = self.env.step(actions)
            if self._by_hand:
                self._over = np.logical_or(made[2], made[3])
            pending = kept, made, self._extra
            self._extra = {}
        actions, made, extra = pending
        obs, reward, terminated, truncated, info = made
        before, self._obs = self._obs, None
        try:
            self._writer.append(
                obs=before,
                action=actions,
                reward=reward,
                next_obs=obs,
                terminated=terminated,
                truncated=truncated,
                info=info,
                timeout_s=self._timeout_s,
                **extra,
            )
        except Timeout:
            self._obs, self._pending = before, pending
            raise
        self._obs = copied(obs)
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
        self._check_open()
        mask = None if options is None else options.get("reset_mask")
        self._cut(None if self._pending is not None or self._obs is None else mask)
        obs, info = self.env.reset(seed=seed, options=options)
        self._over &= False if mask is None else ~np.asarray(mask)
        self._obs = copied(obs)
        return obs, info

    def _cut(self, mask: Any = None) -> None:
        """End the episodes of these environments, of all with ``None``."""
        self._pending, self._extra = None, {}
        self._writer.reset(final_obs=self._obs if self._fields.linked else None, mask=mask)
