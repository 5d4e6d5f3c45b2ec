"""Stable-Baselines3's ReplayBuffer, on a table."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3 import transitions
from async_loader.compat.sb3.steps import Steps
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids


class ReplayBuffer(transitions.buffers.ReplayBuffer):  # type: ignore[misc]
    """As ``stable_baselines3.common.buffers.ReplayBuffer``, in shared memory.

    Draws use NumPy's global random numbers in the order in which the original uses them: the same
    seeds give the same batches, and with them the same run. Nothing but `add` may write to `table`.

    Parameters
    ----------
    buffer_size : int
        Transitions of all environments; each keeps the newest ``buffer_size // n_envs``.
    observation_space, action_space : gymnasium.Space
    device : str | torch.device
        Of the tensors; "auto": a GPU if there is one.
    n_envs : int
    optimize_memory_usage : bool
        Whether observations are stored once, not with ``handle_timeout_termination``: the
        observation after a step is the one of the next call, as there.
    handle_timeout_termination : bool
        Whether ``dones`` are 0 where ``infos`` say ``TimeLimit.truncated``.

    Attributes
    ----------
    table : async_loader.ReplayBuffer
        With the fields ``obs``, ``next_obs``, ``action``, ``reward``, ``terminated`` and
        ``truncated``, for loaders; environment ``i`` is stream ``i``.
    pos, full, buffer_size, n_envs
        As there.
    observations, next_observations, actions, rewards, dones, timeouts : arrays
        ``[buffer_size, n_envs, ...]``, as there; each access makes a copy, which cannot be written
        to. ``buffer.rewards = changed`` stores rewards. With ``optimize_memory_usage`` the newest
        ``dones`` can be set to True, as algorithms do before they begin anew.

    Raises
    ------
    OutOfMemory
        If a full buffer would not fit into the free memory.
    ValueError
        For ``optimize_memory_usage`` with ``handle_timeout_termination``.
    """

    pos: int
    full: bool

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        # not that of the original's ReplayBuffer, which allocates
        super(transitions.buffers.ReplayBuffer, self).__init__(
            buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        if optimize_memory_usage and handle_timeout_termination:
            raise ValueError(
                "optimize_memory_usage=True keeps no observation after a time limit: say "
                "handle_timeout_termination=False, or leave optimize_memory_usage out"
            )
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._begin()

    def _begin(self, saved: Any = None) -> None:
        self._form = TransitionFormat(
            self.observation_space,
            self.obs_shape,
            self.n_envs,
            self.action_dim,
            self._maybe_cast_dtype(self.action_space.dtype),
            self.optimize_memory_usage,
        )
        self._steps = Steps(self.buffer_size, self._form, saved)

    @property
    def table(self) -> Table:
        return self._steps.table

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of each environment.

        Parameters
        ----------
        obs, next_obs : array [n_envs, ...] or dict of arrays
            ``next_obs`` is what followed, also where the environment was reset since.
        action : array [n_envs, ...]
        reward, done : array [n_envs]
        infos : sequence of dict
            One for each environment; read with ``handle_timeout_termination``.
        """
        timeouts = None
        if self.handle_timeout_termination:
            for info in infos:
                if info.get("TimeLimit.truncated", False):
                    every = [one.get("TimeLimit.truncated", False) for one in infos]
                    timeouts = np.array(every, np.bool_)
                    break
        if action.ndim != 2:
            action = action.reshape(self.n_envs, self.action_dim)
        if self._form.as_given:
            values: Any = obs, next_obs, action, reward, done
        else:
            flat = self._form.flat
            values = *flat(obs), *flat(next_obs), action, reward, done
        self._steps.add(values, timeouts)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _get_samples(self, batch_inds: Ids, env: Any = None) -> Any:
        """Return the transitions at these positions, of environments that are drawn."""
        return self._samples(self._steps.at(self._drawn(batch_inds)), env)

    def _drawn(self, batch_inds: Ids) -> Ids:
        """Draw an environment for each position. Return the transitions' ids."""
        if self.n_envs == 1:  # randint(0, 1) uses no random number
            return self._steps.ids(batch_inds, 0, self.pos)
        drawn = np.random.randint(0, high=self.n_envs, size=len(batch_inds))
        return self._steps.ids(batch_inds, drawn, self.pos)

    def _samples(
        self,
        of: Transitions,
        env: Any,
        discounts: Array | None = None,
        normalized: bool = False,
    ) -> Any:
        """Return transitions as the named tuple of the installed version.

        ``normalized``: whether the rewards are.
        """
        obs, next_obs, reward = of.obs, of.next_obs, of.reward.reshape(-1, 1)
        if env is not None:
            obs, next_obs = (self._normalized(one, env) for one in (obs, next_obs))
            reward = reward if normalized else self._normalize_reward(reward, env)
        tensor = self._tensor
        ends = of.terminated.astype(np.float32).reshape(-1, 1)
        more = () if discounts is None else (tensor(discounts),)
        nested, keys = self._form.nested, self._form.keys
        samples = transitions.samples
        kind = samples.ReplayBufferSamples if keys is None else samples.DictReplayBufferSamples
        return kind(
            nested([tensor(one) for one in obs]),
            tensor(of.action),
            nested([tensor(one) for one in next_obs]),
            tensor(ends),
            tensor(reward),
            *more,
        )

    def _normalized(self, obs: list[Array], env: Any) -> list[Array]:
        found = self._normalize_obs(self._form.nested(obs), env)
        return [found] if self._form.keys is None else [found[key] for key in self._form.keys]

    def _tensor(self, array: Array) -> torch.Tensor:
        """Return a tensor on the device: of the array's own memory on the CPU."""
        made = torch.from_numpy(array)
        return made if self.device.type == "cpu" else made.to(self.device)

    def reset(self) -> None:
        """Remove all transitions."""
        super().reset()
        self.table.clear()

    def close(self) -> None:
        """Close the table. A buffer need not be closed: its memory goes with its last reference."""
        self.table.close()

    # -- what was stored ---------------------------------------------------------------------------

    def _places(self) -> Ids:
        """Return the ids by place, ``[buffer_size, n_envs]``; -1 where there is nothing."""
        return self._steps.places(self.pos, self.size())

    def _column(self, name: str) -> Array:
        return _read_only(self._steps.column(name, self._places()))

    def _observations(self, name: str) -> Any:
        keys = self._form.keys
        if keys is None:
            return self._column(name)
        # of a dict, an assignment to a key would change nothing that is stored
        return MappingProxyType({key: self._column(f"{name}.{key}") for key in keys})

    @property
    def observations(self) -> Any:
        return self._observations("obs")

    @property
    def next_observations(self) -> Any:
        if self.optimize_memory_usage:
            raise AttributeError(
                "next_observations: with optimize_memory_usage=True there are none"
            )
        return self._observations("next_obs")

    @property
    def actions(self) -> Array:
        return self._column("action")

    @property
    def rewards(self) -> Array:
        return self._column("reward")

    @rewards.setter
    def rewards(self, values: Any) -> None:
        places = self._places()
        there = places >= 0
        changed = np.broadcast_to(np.asarray(values, np.float32), places.shape)
        self.table.update(places[there], reward=changed[there])

    @property
    def timeouts(self) -> Array:
        return _read_only(self._column("truncated").astype(np.float32))

    @property
    def dones(self) -> Array:
        ends = self._column("terminated") | self._column("truncated")
        shown = _read_only(ends.astype(np.float32))
        if not self.optimize_memory_usage:
            return shown
        made = shown.view(_Dones)
        made.end = self._end_newest
        return made

    def _end_newest(self, place: Any, value: Any) -> bool:
        """End all episodes at their newest transitions, if that is what setting ``dones`` says."""
        newest = (self.pos - 1) % self.buffer_size
        if not isinstance(place, int) or place != newest or not np.all(value):
            return False
        self._steps.end()
        return True

    # -- pickles -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        left = ("_steps", "_form")
        state = {name: value for name, value in vars(self).items() if name not in left}
        state["_saved"] = self._steps.saved()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved")
        self.__dict__.update(state)
        self._begin(saved)


class _Dones(np.ndarray[Any, np.dtype[Any]]):
    """Read-only, but for the newest transition: see `ReplayBuffer._end_newest`."""

    end: Callable[[Any, Any], bool] | None = None

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.end is None or not self.end(place, value):
            super().__setitem__(place, value)


def _read_only(copied: Array) -> Array:
    """Return an array that raises ValueError when it is written to: what reads it would not see it.

    A view, since the owner of memory may allow writing again.
    """
    owner = copied if copied.base is None else copied.copy()
    owner.flags.writeable = False
    return owner[...]


class DictReplayBuffer(ReplayBuffer, transitions.buffers.DictReplayBuffer):  # type: ignore[misc]
    """As ``stable_baselines3.common.buffers.DictReplayBuffer``: observations are dicts of arrays.

    Parameters and attributes are those of `ReplayBuffer`, without ``optimize_memory_usage``, which
    the original refuses too; ``observations`` and ``next_observations`` are read-only mappings, and
    `sample` returns ``DictReplayBufferSamples``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.obs_shape, dict), (
            "DictReplayBuffer must be used with Dict obs space only"
        )
        assert not self.optimize_memory_usage, (
            "DictReplayBuffer does not support optimize_memory_usage"
        )
