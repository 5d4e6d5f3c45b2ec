"""What a vector of environments says about its resets, and what a program has forgotten."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from async_loader.errors import ConfigError


class Resets:
    """Which environments a program has to reset, and whether their last observations survive it.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._mode = envs.metadata.get("autoreset_mode")
        self._over = np.zeros(envs.num_envs, np.bool_)
        self._warned = False

    def check(self) -> None:
        """Raise ConfigError if an episode is over and its environment was not reset."""
        if self._over.any():
            raise ConfigError(
                f"environments {np.flatnonzero(self._over).tolist()} ended their episodes, and "
                "their autoreset mode is DISABLED: call reset(options={'reset_mask': terminated | "
                "truncated}) before the next step()"
            )

    def note(self, made: tuple[Any, Any, Any, Any, dict[str, Any]]) -> None:
        """Note what a step has returned."""
        obs, _, terminated, truncated, info = made
        if self._mode is AutoresetMode.DISABLED:
            self._over = np.logical_or(terminated, truncated)
        elif self._mode is AutoresetMode.SAME_STEP and not self._warned:
            self._look(obs, np.logical_or(terminated, truncated), info)

    def forget(self, mask: Any) -> None:
        """Note that these environments were reset, all with ``None``."""
        self._over = np.zeros_like(self._over) if mask is None else self._over & ~np.asarray(mask)

    def _look(self, obs: Any, ended: Any, info: dict[str, Any]) -> None:
        """Warn where the last observation of an episode is the first of the next one."""
        finals = info.get("final_obs")
        if finals is None:
            return
        for row in np.flatnonzero(ended).tolist():
            if _equal(finals[row] if not isinstance(finals, dict) else None, obs, row):
                self._warned = True
                warnings.warn(
                    f"environment {row}: info['final_obs'] equals the first observation of the "
                    "next episode in every number. An environment that returns the same array in "
                    "each step overwrites it by its reset: let it return copies, or make the "
                    "vector with AutoresetMode.NEXT_STEP",
                    RuntimeWarning,
                    stacklevel=4,
                )
                return


def _equal(final: Any, obs: Any, row: int) -> bool:
    """Return whether an observation of several floats is that of a row. Others may well be equal:
    images and counts often are.
    """
    if not isinstance(final, np.ndarray) or not isinstance(obs, np.ndarray):
        return False
    return final.dtype.kind == "f" and final.size > 1 and np.array_equal(final, obs[row])
