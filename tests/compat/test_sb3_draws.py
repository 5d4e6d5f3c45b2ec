"""Draws of the buffers for Stable-Baselines3 from calls that the table has not taken yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from stable_baselines3.common import buffers as theirs

from async_loader.compat import sb3 as ours

BOX = spaces.Box(-10, 10, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


def call(number: int, n_envs: int = 1, done: bool = False) -> tuple[Any, ...]:
    """Return arguments of ``add`` in the dtypes of the table, told apart by a number."""
    obs = np.full((n_envs, 3), number, np.float32)
    obs += np.arange(n_envs, dtype=np.float32)[:, None] / 10
    action = np.zeros((n_envs, 2), np.float32)
    reward = np.full(n_envs, number, np.float32)
    return obs, obs + 1, action, reward, np.full(n_envs, done), [{}] * n_envs


def buffers(size: int, n_envs: int = 1) -> tuple[Any, Any]:
    return tuple(module.ReplayBuffer(size, BOX, ACTION, "cpu", n_envs) for module in (theirs, ours))


def assert_same_draw(both: tuple[Any, Any], batch: int = 50) -> None:
    state = np.random.get_state()
    left = both[0].sample(batch)
    after = np.random.get_state()
    np.random.set_state(state)
    right = both[1].sample(batch)
    for one, other in zip(left, right, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and bool((one == other).all()))
    # random numbers that are drawn later are the same ones too
    assert all(np.array_equal(a, b) for a, b in zip(after, np.random.get_state(), strict=True))


def gathered(buffer: Any) -> int:
    return buffer._steps._state.table.records.count


@settings(max_examples=40)
@given(
    size=st.integers(1, 300),
    n_envs=st.integers(1, 9),
    calls=st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=5),
    batch=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_draws_are_those_of_the_original_whether_steps_are_gathered_or_not(
    size, n_envs, calls, batch, seed
):
    both = buffers(size * n_envs, n_envs)
    np.random.seed(seed)
    number = 0
    for count, ends in calls:
        for i in range(count):
            number += 1
            for buffer in both:
                buffer.add(*call(number, n_envs, done=ends and i == count - 1))
        assert_same_draw(both, batch)


def test_a_subclass_that_returns_something_else_for_positions_is_asked():
    class Doubled(ours.ReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            got = super()._get_samples(batch_inds, env)
            return got._replace(rewards=got.rewards * 2)

    buffer = Doubled(10, BOX, ACTION)
    for number in range(3):
        buffer.add(*call(number))
    assert set(buffer.sample(50).rewards.flatten().tolist()) == {0.0, 2.0, 4.0}
