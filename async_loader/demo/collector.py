"""The actor's side: a thread that steps CartPoles and adds what happened to the buffer. Never learns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from async_loader import ReplayBuffer
from async_loader.demo.dqn import one_torch_thread
from async_loader.demo.settings import Episode, Settings
from async_loader.errors import MissingExtra

Array = NDArray[Any]


def make_envs(num_envs: int) -> Any:
    """`num_envs` times CartPole-v1 behind one step() and one reset(), as Gymnasium's vector environment.

    Raises
    ------
    MissingExtra
        Gymnasium is not installed.
    """
    try:
        import gymnasium
        from gymnasium.vector import AutoresetMode
    except ImportError as error:
        raise MissingExtra('the demo needs gymnasium: pip install "async_loader[demo]"') from error
    # SAME_STEP: with the default, the step after an end is no transition at all, and would have to be left out.
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )


class Pace:
    """How far collecting and learning may run ahead of each other. Both threads wait here, and only here.

    The learner may make update u once warmup + u * steps_per_update environment steps are there; the collector may be
    `slack` steps ahead of that. So neither starves the other, and a slow machine changes no result.
    """

    def __init__(self, *, warmup_steps: int, steps_per_update: float, slack: int) -> None:
        self._warmup = warmup_steps
        self._steps_per_update = steps_per_update
        self._slack = slack
        self._change = threading.Condition()
        self._ended = False
        self.env_steps = 0
        self.updates = 0

    def wait_to_collect(self) -> bool:
        """Wait until the collector may step; False when the run has ended."""
        with self._change:
            self._change.wait_for(lambda: self._ended or self.env_steps < self._due() + self._slack)
            return not self._ended

    def wait_to_learn(self) -> bool:
        """Wait until the learner may update; False when the run has ended."""
        with self._change:
            self._change.wait_for(lambda: self._ended or self.env_steps >= self._due())
            return not self._ended

    def collected(self, env_steps: int) -> None:
        with self._change:
            self.env_steps += env_steps
            self._change.notify_all()

    def learned(self) -> None:
        with self._change:
            self.updates += 1
            self._change.notify_all()

    def end(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()

    def _due(self) -> float:
        return self._warmup + self.updates * self._steps_per_update


class Policy:
    """The network the collector acts with: it follows the learner's, a little at each update.

    One update's network may have just forgotten how to balance at the edge; the average of the latest hundred has not.
    """

    def __init__(self, network: nn.Module, num_actions: int, rate: float, rng: np.random.Generator) -> None:
        self._network = network
        self._num_actions = num_actions
        self._rate = rate
        self._rng = rng
        self._lock = threading.Lock()

    def follow(self, network: nn.Module) -> None:
        """Move by `rate` towards the weights of a network of the same shape."""
        mine: list[Tensor] = list(self._network.parameters())
        newer: list[Tensor] = list(network.parameters())
        with self._lock, torch.no_grad():
            torch._foreach_lerp_(mine, newer, self._rate)

    def act(self, obs: Array, epsilon: float) -> Array:
        """Epsilon-greedy actions, int64 [envs], for float32 [envs, obs_size]."""
        with self._lock, torch.inference_mode():
            greedy = self._network(torch.from_numpy(obs)).argmax(dim=1).numpy()
        explore = self._rng.random(len(obs)) < epsilon
        return np.where(explore, self._rng.integers(self._num_actions, size=len(obs)), greedy)


class Returns:
    """The finished episodes and the mean return of the newest `window`. Written by the collector, read by anyone."""

    def __init__(self, window: int, target: float) -> None:
        self._newest: deque[float] = deque(maxlen=window)
        self._window = window
        self._target = target
        self.episodes: list[Episode] = []
        self.mean = 0.0

    @property
    def reached(self) -> bool:
        return len(self.episodes) >= self._window and self.mean >= self._target

    def add(self, episode: Episode) -> None:
        self._newest.append(episode.total_reward)
        self.mean = sum(self._newest) / len(self._newest)
        self.episodes.append(episode)


class Collector(threading.Thread):
    """Steps the environments at the given pace until target or end. What goes wrong in it is kept in `error`."""

    def __init__(
        self,
        settings: Settings,
        envs: Any,
        policy: Policy,
        buffer: ReplayBuffer,
        pace: Pace,
        returns: Returns,
        seconds: Callable[[], float],
    ) -> None:
        super().__init__(name="collector", daemon=True)
        self.error: BaseException | None = None
        self._settings = settings
        self._envs = envs
        self._policy = policy
        self._buffer = buffer
        self._pace = pace
        self._returns = returns
        self._seconds = seconds
        self._running = np.zeros(settings.num_envs)

    def run(self) -> None:
        try:
            with one_torch_thread():
                self._collect()
        except BaseException as error:
            self.error = error
        finally:
            self._pace.end()

    def _collect(self) -> None:
        obs, _ = self._envs.reset(seed=self._settings.seed)
        # The target is checked here, where returns are written: no episode can end between the check and the stop.
        while not self._returns.reached and self._pace.wait_to_collect():
            obs = self._step(obs)
            self._pace.collected(len(obs))

    def _step(self, obs: Array) -> Array:
        action = self._policy.act(obs, self._epsilon())
        next_obs, reward, terminated, truncated, info = self._envs.step(action)
        ended = terminated | truncated
        self._buffer.extend(
            {
                "obs": obs,
                "action": action,
                "reward": reward.astype(np.float32),
                "next_obs": _before_reset(next_obs, ended, info),
                "terminated": terminated,
            }
        )
        self._count(reward, ended)
        return next_obs  # type: ignore[no-any-return]

    def _epsilon(self) -> float:
        dqn = self._settings.dqn
        return max(dqn.final_epsilon, 1.0 - self._pace.env_steps / dqn.explore_steps)

    def _count(self, reward: Array, ended: Array) -> None:
        self._running += reward
        for env in np.flatnonzero(ended):
            self._returns.add(Episode(float(self._running[env]), self._pace.env_steps, self._seconds()))
        self._running[ended] = 0.0


def _before_reset(next_obs: Array, ended: Array, info: dict[str, Any]) -> Array:
    """The observations the actions led to: where an episode ended, `next_obs` already shows the next one's start."""
    if not ended.any():
        return next_obs
    reached = next_obs.copy()
    reached[ended] = np.stack(info["final_obs"][ended])
    return reached
