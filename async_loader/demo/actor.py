"""One actor: a process that steps CartPoles and appends what happened to the feeder's table. Never learns, imports no torch."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_loader.demo.settings import Settings
from async_loader.errors import AsyncLoaderError, MissingExtra
from async_loader.feeder import connect

Array = NDArray[Any]
TABLE, POLICY = "replay", "policy"
NUM_ACTIONS = 2

_NO_GYMNASIUM = 'the demo needs gymnasium: pip install "async_loader[demo]"'
_TELL_EVERY = 100  # environment steps
_LOOK_EVERY = 4  # steps of all environments, after which newer weights are asked for
_BATCH_ROWS = 8  # of a message; the limiter holds an actor up when its buffer of a few of them is full
_BUFFER_BYTES = 2048
_POLICY_S = 60.0  # within which the first policy has to come


class ActorReport(NamedTuple):
    """What an actor says to its parent now and then: all its steps so far, and the returns of episodes since the last time."""

    env_steps: int
    returns: tuple[float, ...]


class Failed(NamedTuple):
    """The last thing that an actor says, when something went wrong in it; where, if that was a surprise."""

    what: str
    where: str = ""


def require_envs() -> None:
    """Look whether `make_envs` will find what it needs, before actors are started.

    Raises
    ------
    MissingExtra
        Gymnasium is not installed.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra(_NO_GYMNASIUM)


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
        raise MissingExtra(_NO_GYMNASIUM) from error
    # SAME_STEP: with the default, the step after an end is no transition at all, and would have to be left out.
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )


class Policy:
    """The Q network's greedy choice, from published weights. The same arithmetic as `QNetwork`, without torch."""

    def __init__(self, tensors: Mapping[str, Array], version: int) -> None:
        self.version = version
        self._scale = tensors["scale"]
        self._layers = [(tensors[f"layers.{i}.weight"].T.copy(), tensors[f"layers.{i}.bias"]) for i in (0, 2, 4)]

    def values(self, obs: Array) -> Array:
        """float32 [envs, actions] for float32 [envs, obs_size]."""
        (first, a), (second, b), (last, c) = self._layers
        hidden = np.maximum(obs / self._scale @ first + a, 0)
        values: Array = np.maximum(hidden @ second + b, 0) @ last + c
        return values


class Actor:
    """Steps its environments for as long as it is let. Made and used in its process.

    Parameters
    ----------
    client : Client
        Of the feeder; a policy is published there.
    tell : callable
        Takes a `ActorReport`.
    """

    def __init__(self, number: int, settings: Settings, envs: Any, client: Any, tell: Callable[[ActorReport], None]) -> None:
        self._settings, self._envs, self._client, self._tell = settings, envs, client, tell
        self._seed = settings.seed * settings.num_actors + number
        self._rng = np.random.default_rng([settings.seed, number])
        self._running = np.zeros(settings.num_envs)
        self._env_steps = self._told = 0
        self._returns: list[float] = []

    def run(self) -> None:
        """Until the feeder is gone, or this process is."""
        found = self._client.latest(POLICY, timeout_s=_POLICY_S)
        policy = Policy(found.tensors, found.version)
        obs, _ = self._envs.reset(seed=self._seed * self._settings.num_envs)
        table = self._client.table(TABLE)
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(table.writer(batch_rows=_BATCH_ROWS, buffer_bytes=_BUFFER_BYTES, linger_ms=2.0))
            while True:
                for _ in range(_LOOK_EVERY):
                    obs = self._step(policy, obs, writer)
                newer = self._client.latest(POLICY, newer_than=policy.version)
                if newer is not None:
                    policy = Policy(newer.tensors, newer.version)

    def _step(self, policy: Policy, obs: Array, writer: Any) -> Array:
        actions = self._choose(policy, obs)
        after, rewards, terminated, truncated, info = self._envs.step(actions)
        for env in range(len(obs)):
            ended = bool(terminated[env] or truncated[env])
            writer.append(
                obs=obs[env],
                action=int(actions[env]),
                reward=float(rewards[env]),
                policy_version=policy.version,
                terminated=bool(terminated[env]),
                truncated=bool(truncated[env]),
                # Where an episode ended, `after` already shows the next one's start.
                final_obs=info["final_obs"][env] if ended else None,
                stream=env,
                timeout_s=math.inf,  # the limiter holds actors up for as long as the learner takes
            )
        self._count(rewards, terminated | truncated)
        return after  # type: ignore[no-any-return]

    def _choose(self, policy: Policy, obs: Array) -> Array:
        """Epsilon-greedy actions, int64 [envs]."""
        dqn = self._settings.dqn
        all_steps = self._env_steps * self._settings.num_actors  # the others explore as fast
        epsilon = max(dqn.final_epsilon, 1.0 - all_steps / dqn.explore_steps)
        explore = self._rng.random(len(obs)) < epsilon
        return np.where(explore, self._rng.integers(NUM_ACTIONS, size=len(obs)), policy.values(obs).argmax(axis=1))

    def _count(self, rewards: Array, ended: Array) -> None:
        self._env_steps += len(rewards)
        self._running += rewards
        if ended.any():
            self._returns += self._running[ended].tolist()
            self._running[ended] = 0.0
        if self._returns or self._env_steps - self._told >= _TELL_EVERY:
            self._tell(ActorReport(self._env_steps, tuple(self._returns)))
            self._told, self._returns = self._env_steps, []


def act(number: int, settings: Settings, parent: Connection, make: Callable[[int], Any] = make_envs) -> None:
    """An actor process: waits for the feeder's address, then acts until it is ended, or its parent or the feeder is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches everybody; the parent ends this one
    try:
        with contextlib.closing(make(settings.num_envs)) as envs, connect(parent.recv(), on_disconnect="raise") as client:
            Actor(number, settings, envs, client, parent.send).run()
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except AsyncLoaderError as error:
        failed = Failed(str(error))
    except Exception as error:
        failed = Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    with contextlib.suppress(OSError):
        parent.send(failed)
