"""Draws of 256 transitions with hindsight goals, of episodes of 50 and of 1,000 steps: the view
beside Stable-Baselines3's HerReplayBuffer.
"""

from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Row, Target
from benchmarks.measure import time_draws
from benchmarks.replay.uniform import DRAW_METRICS

ROWS, BATCH, FRACTION = 50_000, 256, 0.8
SIZES = {"observation": 10, "achieved_goal": 3, "desired_goal": 3}
ACTION = 4
CASES = [(length, strategy) for length in (50, 1000) for strategy in ("future", "episode")]


def compute_reward(achieved: Any, desired: Any, info: Any) -> Any:
    return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def observations(length: int) -> dict[str, np.ndarray]:
    """The observations of an episode, ``[length + 1, ...]``."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal((length + 1, size), dtype=np.float32)
        for name, size in SIZES.items()
    }


def ours(seconds: float, length: int, strategy: Any) -> Figures:
    from async_loader import Field, Hindsight, ReplayBuffer

    goals = {name: Field((size,), "float32", next="next_obs") for name, size in SIZES.items()}
    schema = {
        "obs": goals, "action": ((ACTION,), "float32"), "reward": "float32",
        "terminated": "bool", "truncated": "bool",
    }  # fmt: skip
    view = Hindsight(compute_reward, strategy=strategy, relabel_fraction=FRACTION)
    # the observation after an episode takes a row
    buffer = ReplayBuffer(ROWS + ROWS // length, schema, view=view, seed=0)
    seen = observations(length)
    steps = {
        "obs": {name: array[:-1] for name, array in seen.items()},
        "action": np.zeros((length, ACTION), np.float32),
        "reward": np.full(length, -1, np.float32),
        **{name: np.zeros(length, np.bool_) for name in ("terminated", "truncated")},
    }
    final = {name: array[-1] for name, array in seen.items()}
    for _ in range(ROWS // length):
        buffer.extend(steps, stream=0)
        buffer.end_episode(stream=0, final_obs=final, truncated=True)
    share = float(buffer.sample(10 * BATCH)["relabelled"].mean())
    assert abs(share - FRACTION) < 0.05, share
    return time_draws(lambda: buffer.sample(BATCH), seconds)


def sb3(seconds: float, length: int, strategy: str) -> Figures:
    """Its batches are tensors on the arrays that it gathered."""
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Goals(gymnasium.Env):
        observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in SIZES.items()}
        )
        action_space = spaces.Box(-1, 1, (ACTION,), np.float32)
        compute_reward = staticmethod(compute_reward)

    env = DummyVecEnv([Goals])
    buffer = HerReplayBuffer(
        ROWS, env.observation_space, env.action_space, env, device="cpu", n_sampled_goal=4,
        goal_selection_strategy=strategy,
    )  # fmt: skip
    seen, action = observations(length), np.zeros((1, ACTION), np.float32)
    steps = [{name: array[t : t + 1] for name, array in seen.items()} for t in range(length + 1)]
    reward, info = np.full(1, -1, np.float32), [{"TimeLimit.truncated": True}]
    for i in range(ROWS):
        t = i % length
        done = np.array([t == length - 1])
        buffer.add(steps[t], steps[t + 1], action, reward, done, info if done[0] else [{}])

    def take() -> list[Any]:
        drawn = buffer.sample(BATCH)
        return [
            *drawn.observations.values(), *drawn.next_observations.values(), drawn.actions,
            drawn.rewards, drawn.dones,
        ]  # fmt: skip

    return time_draws(take, seconds)


def _name(library: str, length: int, strategy: str) -> str:
    return f"{library}, {strategy}, {length:,} steps"


ROW = Row(
    "hindsight",
    f"{BATCH} transitions with hindsight goals, of {ROWS:,}",
    DRAW_METRICS,
    tuple(
        contender
        for case in CASES
        for contender in (
            Contender(
                _name("async_loader", *case),
                "project",
                partial(ours, length=case[0], strategy=case[1]),
            ),
            Contender(
                _name("stable-baselines3", *case),
                "replay-peers",
                partial(sb3, length=case[0], strategy=case[1]),
                against=_name("async_loader", *case),
            ),
        )
    ),
    tuple(
        Target(
            f"against HerReplayBuffer, {strategy}, {length:,} steps",
            "cpu_us",
            1.0,
            _name("async_loader", length, strategy),
            (_name("stable-baselines3", length, strategy),),
        )
        for length, strategy in CASES
    ),
)
