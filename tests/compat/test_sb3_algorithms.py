"""Algorithms of Stable-Baselines3 that learn from the buffers here, beside their own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from async_loader.compat import sb3 as ours


class Task(gymnasium.Env[Any, Any]):
    """A point that drifts; episodes end by themselves or by the clock, which `infos` say."""

    def __init__(self, continuous: bool, as_dict: bool = False):
        box = spaces.Box(-10, 10, (3,), np.float32)
        self.observation_space = spaces.Dict({"at": box, "far": box}) if as_dict else box
        self.action_space = (
            spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        )
        self._as_dict = as_dict

    def _obs(self) -> Any:
        at = self._at.astype(np.float32)
        return {"at": at, "far": -at} if self._as_dict else at

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._steps = self.np_random.normal(size=3), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._at = self._at + self.np_random.normal(size=3) * 0.3 + float(np.sum(action)) * 0.1
        self._steps += 1
        over = bool(abs(self._at[0]) > 3)
        return self._obs(), -abs(float(self._at[0])), over, self._steps >= 12, {}


def learned(
    algorithm: Any,
    buffer_class: Any,
    *,
    n_envs: int = 1,
    as_dict: bool = False,
    normalise: bool = False,
    **more: Any,
) -> tuple[Any, list[torch.Tensor]]:
    continuous = algorithm is not DQN
    env: Any = DummyVecEnv([lambda: Task(continuous, as_dict)] * n_envs)
    if normalise:
        env = VecNormalize(env)
    model = algorithm(
        "MultiInputPolicy" if as_dict else "MlpPolicy",
        env,
        replay_buffer_class=buffer_class,
        seed=1,
        learning_starts=10,
        buffer_size=80,
        batch_size=16,
        train_freq=(4, "step"),
        policy_kwargs={"net_arch": [8]},
        device="cpu",
        **more,
    )
    model.learn(120)
    return model, [part.clone() for part in model.policy.parameters()]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (DQN, {}),
        (DQN, {"n_envs": 2, "normalise": True}),
        (SAC, {}),
        (SAC, {"as_dict": True}),
        (TD3, {"n_envs": 2}),
    ],
    ids=["dqn", "dqn of two", "sac", "sac of dicts", "td3 of two"],
)
def test_a_run_with_the_same_seed_gives_the_same_policy_to_the_last_bit(algorithm, options):
    name = "DictReplayBuffer" if options.get("as_dict") else "ReplayBuffer"
    _, expected = learned(algorithm, getattr(theirs, name), **options)
    model, found = learned(algorithm, getattr(ours, name), **options)
    assert type(model.replay_buffer) is getattr(ours, name)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.skipif(not hasattr(theirs, "NStepReplayBuffer"), reason="an older version")
def test_n_step_runs_are_the_same_too():
    kwargs = {"replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.9}}
    _, expected = learned(SAC, theirs.NStepReplayBuffer, **kwargs)
    _, found = learned(SAC, ours.NStepReplayBuffer, **kwargs)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_runs_with_observations_stored_once_are_the_same_too(algorithm):
    once = {"optimize_memory_usage": True}
    for module in (theirs, ours):
        with pytest.raises(ValueError, match="handle_timeout_termination"):
            learned(algorithm, module.ReplayBuffer, **once)
    once["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    found = []
    for module in (theirs, ours):
        model, _ = learned(algorithm, module.ReplayBuffer, **once)
        with pytest.warns(UserWarning, match="last trajectory"):
            model.learn(20)  # begins with a reset, before which it says that the episode is over
        found.append([part.clone() for part in model.policy.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_saved_buffer_is_loaded_and_learned_from(tmp_path):
    model, _ = learned(DQN, ours.ReplayBuffer)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    np.random.seed(3)
    expected = model.replay_buffer.sample(20)
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    np.random.seed(3)
    found = model.replay_buffer.sample(20)
    assert torch.equal(expected.observations, found.observations)
    assert torch.equal(expected.dones, found.dones)
    model.learn(40, reset_num_timesteps=False)
