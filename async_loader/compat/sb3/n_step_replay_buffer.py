"""Stable-Baselines3's NStepReplayBuffer, on a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.compat.sb3 import transitions
from async_loader.compat.sb3.replay_buffer import ReplayBuffer
from async_loader.compat.sb3.transitions import Transitions
from async_loader.errors import MissingExtra
from async_loader.replay.array_types import Ids

_Theirs: Any = getattr(transitions.buffers, "NStepReplayBuffer", None)
if _Theirs is None:
    raise MissingExtra("the installed stable-baselines3 has no NStepReplayBuffer: use a newer one")


class NStepReplayBuffer(ReplayBuffer, _Theirs):  # type: ignore[misc]
    """As ``stable_baselines3.common.buffers.NStepReplayBuffer``: samples are n-step returns.

    A return ends with its episode, and with the newest transition; ``discounts`` has
    ``gamma ** k`` of the k steps in it.

    Parameters
    ----------
    *args, **kwargs
        As `ReplayBuffer`, without ``optimize_memory_usage``, which the original refuses too.
    n_steps : int
    gamma : float

    Raises
    ------
    NotImplementedError
        With ``optimize_memory_usage=True``.
    """

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_steps = n_steps
        self.gamma = gamma
        if self.optimize_memory_usage:
            raise NotImplementedError(
                "NStepReplayBuffer doesn't support optimize_memory_usage=True"
            )

    def _get_samples(self, batch_inds: Ids, env: Any = None) -> Any:
        """Return the n-step returns from these positions on, of environments that are drawn."""
        placed, count = self._steps, len(batch_inds)
        first = self._drawn(batch_inds)
        steps = np.arange(self.n_steps)
        positions = (batch_inds[:, None] + steps) % self.buffer_size
        # steps of one environment are n_envs ids apart; what is beyond the newest is masked
        ids = first[:, None] + steps * self.n_envs
        over = (placed.column("terminated", ids) | placed.column("truncated", ids)).astype(np.bool_)
        over |= positions == (self.pos - 1) % self.buffer_size
        last = np.where(over.any(axis=1), over.argmax(axis=1), self.n_steps - 1)
        mask = steps <= last[:, None]
        rewards = self._normalize_reward(placed.column("reward", ids), env)
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
        returns = (rewards * discounts * mask).sum(axis=1, keepdims=True)
        both = placed.at(np.concatenate((first, ids[np.arange(count), last])))
        shown = Transitions(
            [array[:count] for array in both.obs],
            [array[count:] for array in both.next_obs],
            both.action[:count],
            returns,
            both.terminated[count:],
            both.truncated[count:],
        )
        target = self.gamma ** mask.sum(axis=1, keepdims=True).astype(np.float32)
        return self._samples(shown, env, target, normalized=True)
