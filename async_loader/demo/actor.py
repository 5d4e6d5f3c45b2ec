"""One actor process: steps CartPoles and appends the steps to the feeder's table.

Imports no torch.
"""

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
from async_loader.table import Writer

Array = NDArray[Any]
TABLE, POLICY = "replay", "policy"
NUM_ACTIONS = 2

_NO_GYMNASIUM = 'the demo needs gymnasium: pip install "async_loader[demo]"'
_TELL_EVERY = 100  # environment steps
_LOOK_EVERY = 4  # steps of all environments between two requests for newer weights
# per message; the limiter blocks an actor when its buffer of a few messages is full
_BATCH_ROWS = 8
_BUFFER_BYTES = 2048
_POLICY_S = 60.0  # limit for the first policy to arrive


class ActorReport(NamedTuple):
    """A report of an actor to its parent: its total steps,
    and the returns of episodes since the last report.
    """

    env_steps: int
    returns: tuple[float, ...]


class Failed(NamedTuple):
    """The last message of a failed actor; with a traceback if the error was unexpected."""

    what: str
    where: str = ""


def require_envs() -> None:
    """Check the requirements of `make_envs` before actors are started.

    Raises
    ------
    MissingExtra
        Gymnasium is not installed.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra(_NO_GYMNASIUM)


def make_envs(num_envs: int) -> Any:
    """Return a vector environment of `num_envs` CartPole-v1.

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
    # SAME_STEP: by default, the step after an end is not a transition, and would have to be left
    # out.
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )


class Policy:
    """The greedy policy of the Q network, from published weights.

    The same arithmetic as `QNetwork`, without torch.
    """

    def __init__(self, tensors: Mapping[str, Array], version: int) -> None:
        self.version = version
        self._scale = tensors["scale"]
        self._layers = [
            (tensors[f"layers.{i}.weight"].T.copy(), tensors[f"layers.{i}.bias"]) for i in (0, 2, 4)
        ]

    def values(self, obs: Array) -> Array:
        """Return the Q values, float32 [envs, actions], for float32 [envs, obs_size]."""
        (first, a), (second, b), (last, c) = self._layers
        hidden = np.maximum(obs / self._scale @ first + a, 0)
        values: Array = np.maximum(hidden @ second + b, 0) @ last + c
        return values


class Actor:
    """Steps environments until its process ends. Made and used in that process.

    Parameters
    ----------
    client : Client
        Client of the feeder, where the policy is published.
    tell : callable
        Called with an `ActorReport`.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        envs: Any,
        client: Any,
        tell: Callable[[ActorReport], None],
    ) -> None:
        self._settings, self._envs, self._client, self._tell = settings, envs, client, tell
        self._seed = settings.seed * settings.num_actors + number
        self._rng = np.random.default_rng([settings.seed, number])
        self._running = np.zeros(settings.num_envs)
        self._env_steps = self._told = 0
        self._returns: list[float] = []

    def run(self) -> None:
        """Run until the feeder or this process ends."""
        found = self._client.latest(POLICY, timeout_s=_POLICY_S)
        policy = Policy(found.tensors, found.version)
        obs, _ = self._envs.reset(seed=self._seed * self._settings.num_envs)
        table = self._client.table(TABLE)
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(
                table.writer(batch_rows=_BATCH_ROWS, buffer_bytes=_BUFFER_BYTES, linger_ms=2.0)
            )
            while True:
                for _ in range(_LOOK_EVERY):
                    obs = self._step(policy, obs, writer)
                newer = self._client.latest(POLICY, newer_than=policy.version)
                if newer is not None:
                    policy = Policy(newer.tensors, newer.version)

    def _step(self, policy: Policy, obs: Array, writer: Writer) -> Array:
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
                # At an episode's end, `after` already holds the start of the next one.
                final_obs=info["final_obs"][env] if ended else None,
                stream=env,
                timeout_s=math.inf,  # the limiter blocks actors for as long as the learner needs
            )
        self._count(rewards, terminated | truncated)
        return after  # type: ignore[no-any-return]

    def _choose(self, policy: Policy, obs: Array) -> Array:
        """Return epsilon-greedy actions, int64 [envs]."""
        dqn = self._settings.dqn
        # assumes that the other actors step as fast
        all_steps = self._env_steps * self._settings.num_actors
        epsilon = max(dqn.final_epsilon, 1.0 - all_steps / dqn.explore_steps)
        explore = self._rng.random(len(obs)) < epsilon
        return np.where(
            explore,
            self._rng.integers(NUM_ACTIONS, size=len(obs)),
            policy.values(obs).argmax(axis=1),
        )

    def _count(self, rewards: Array, ended: Array) -> None:
        self._env_steps += len(rewards)
        self._running += rewards
        if ended.any():
            self._returns += self._running[ended].tolist()
            self._running[ended] = 0.0
        if self._returns or self._env_steps - self._told >= _TELL_EVERY:
            self._tell(ActorReport(self._env_steps, tuple(self._returns)))
            self._told, self._returns = self._env_steps, []


def act(
    number: int, settings: Settings, parent: Connection, make: Callable[[int], Any] = make_envs
) -> None:
    """Run an actor process: wait for the feeder's address, then act until killed,
    or until parent or feeder end.
    """
    # a terminal sends Ctrl-C to all processes; the parent ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (
            contextlib.closing(make(settings.num_envs)) as envs,
            connect(parent.recv(), on_disconnect="raise") as client,
        ):
            Actor(number, settings, envs, client, parent.send).run()
    except (EOFError, BrokenPipeError):
        return  # the parent has ended
    except AsyncLoaderError as error:
        failed = Failed(str(error))
    except Exception as error:
        failed = Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    with contextlib.suppress(OSError):
        parent.send(failed)
