"""Streams: writers, vectors of environments with every autoreset mode, ends of episodes, stacks and
what follows.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from async_loader import Field, MinHeap, ReplayBuffer, Transitions
from async_loader.errors import ConfigError, SchemaError
from async_loader.testing.debug import debug_state

LINKED = {
    "obs": Field((2,), np.float32, next="next_obs"),
    "action": np.int64,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
}
PLAIN = {**LINKED, "obs": ((2,), np.float32), "next_obs": ((2,), np.float32)}


class Counting(gym.Env):  # type: ignore[type-arg]
    """Observation (episode, step); episode n ends after 2 + n % 3 steps, in turns terminated and
    truncated.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(10)

    def __init__(self, offset: int = 0) -> None:
        self.episode, self.step_, self.offset = offset - 1, 0, offset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.step_ = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.step_ += 1
        ends = self.step_ == 2 + self.episode % 3
        return (
            self._obs(),
            float(self.episode * 100 + self.step_),
            ends and self.episode % 2 == 0,
            ends and self.episode % 2 == 1,
            {},
        )

    def _obs(self) -> Any:
        return np.array([self.episode, self.step_], np.float32)


def check_transitions(batch: dict[str, Any]) -> None:
    """Every row is one true transition of `Counting`."""
    for obs, action, reward, after, terminated, truncated in zip(
        *(batch[key] for key in ("obs", "action", "reward", "next_obs", "terminated", "truncated")),
        strict=True,
    ):
        episode, step = obs
        assert action == (episode * 7 + step) % 10
        assert after.tolist() == [episode, step + 1]
        assert reward == episode * 100 + step + 1
        ends = step + 1 == 2 + episode % 3
        assert (terminated, truncated) == (ends and episode % 2 == 0, ends and episode % 2 == 1)


def act(obs: Any) -> Any:
    return ((obs[..., 0] * 7 + obs[..., 1]) % 10).astype(np.int64)


def everything(buffer: ReplayBuffer, view: Transitions | None = None) -> dict[str, Any]:
    """All that can be drawn, once each."""
    debug_state(buffer).state.read_plan(view, debug_state(buffer).state.sampler)
    table = debug_state(buffer).state.table
    source = buffer.source(view=view)
    reader = source.reader()
    assert reader is not None
    ids = np.sort(table.ids[np.flatnonzero(table.items.alive)])
    into = reader.fresh(len(ids))
    assert not len(reader.fill(ids, into))
    rebuilt: dict[str, Any] = reader.schema.rebuild(into.fields)
    return rebuilt


@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
)
@pytest.mark.parametrize("schema", [LINKED, PLAIN, None])
def test_a_vector_of_environments_gives_true_transitions_only(
    mode: AutoresetMode, schema: Any
) -> None:
    envs = SyncVectorEnv([lambda i=i: Counting(i) for i in range(3)], autoreset_mode=mode)
    buffer = ReplayBuffer(1000, schema, seed=0)
    writer = buffer.vector_writer(3, autoreset=envs.metadata["autoreset_mode"])
    obs, _ = envs.reset()
    added, steps = 0, 0
    for _ in range(60):
        action = act(obs)
        after, reward, terminated, truncated, info = envs.step(action)
        ids = writer.append(
            obs=obs,
            action=action,
            reward=reward.astype(np.float32),
            next_obs=after,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )
        added += len(ids)
        steps += 3
        obs = after
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            obs, _ = envs.reset(options={"reset_mask": terminated | truncated})
    envs.close()
    batch = everything(buffer)
    check_transitions(batch)
    open_ends = 3 if schema is LINKED else 0
    assert added - len(buffer) <= open_ends
    assert (added < steps) == (mode is AutoresetMode.NEXT_STEP)
    assert batch["terminated"].any()
    assert batch["truncated"].any()


@pytest.mark.parametrize("schema", [LINKED, PLAIN])
def test_a_writer_gives_true_transitions(schema: Any) -> None:
    buffer = ReplayBuffer(1000, schema, seed=0)
    writers, envs = [buffer.writer() for _ in range(3)], [Counting(i) for i in range(3)]
    seen = [env.reset()[0] for env in envs]
    for _ in range(40):
        for i, (writer, env) in enumerate(zip(writers, envs, strict=True)):
            action = act(seen[i])
            after, reward, terminated, truncated, _ = env.step(action)
            step = {"obs": seen[i], "action": action, "reward": reward}
            if schema is PLAIN:
                writer.append(
                    {**step, "next_obs": after}, terminated=terminated, truncated=truncated
                )
            else:
                ends = terminated or truncated
                writer.append(
                    step,
                    terminated=terminated,
                    truncated=truncated,
                    final_obs=after if ends else None,
                )
            seen[i] = env.reset()[0] if terminated or truncated else after
    check_transitions(everything(buffer))


def linked(stack: int = 1, **options: Any) -> ReplayBuffer:
    obs = Field((), np.int64, stack=stack, next="next_obs")
    return ReplayBuffer(100, {"obs": obs, "terminated": np.bool_, "truncated": np.bool_}, **options)


def test_a_truncated_step_needs_what_followed() -> None:
    buffer = linked()
    for call in (
        lambda: buffer.add(obs=1, terminated=False, truncated=True),
        lambda: buffer.writer().append(obs=1, truncated=True),
        lambda: buffer.extend(
            stream=0, obs=np.arange(2), terminated=np.zeros(2, bool), truncated=np.ones(2, bool)
        ),
    ):
        with pytest.raises(SchemaError, match="a truncated step needs final_obs"):
            call()
    with pytest.raises(SchemaError, match="neither terminated nor truncated"):
        buffer.add(obs=1, terminated=False, truncated=False, final_obs=2)
    with pytest.raises(SchemaError, match="no field of the schema has a next"):
        ReplayBuffer(10, {"x": np.int64, "terminated": np.bool_}).add(
            x=1, terminated=True, final_obs=2
        )
    assert len(buffer) == 0
    with pytest.raises(ConfigError, match="ends in one way"):
        buffer.end_episode(terminated=True, truncated=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Transitions(n_steps=0), "n_steps=0"),
        (lambda: Transitions(reward=""), "reward=''"),
        (
            lambda: ReplayBuffer(9, {"reward": np.int64}).source(view=Transitions(n_steps=2)),
            "over float32 or float64",
        ),
        (
            lambda: ReplayBuffer(9, {"reward": np.float32, "discount": np.float32}).source(
                view=Transitions()
            ),
            "'discount'",
        ),
        (lambda: ReplayBuffer(9, {"x": Field(next="index")}), "this name is taken"),
        (lambda: ReplayBuffer(9, {"x": Field(stack=2)}, remover=MinHeap()), "use the Fifo remover"),
    ],
)
def test_what_cannot_work_is_refused_in_words(make: Any, said: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=said):
        make()
