"""Draws of the buffers for Stable-Baselines3 from calls that the table has not taken yet."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from stable_baselines3.common import buffers as theirs

from async_loader.compat import sb3 as ours
from async_loader.errors import Unsupported

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


def test_calls_without_an_end_are_gathered_and_every_reader_sees_them():
    buffer = buffers(100)[1]
    for number in range(10):
        buffer.add(*call(number))
    assert gathered(buffer) == 10
    buffer.sample(20)
    assert gathered(buffer) == 0
    for number in range(10, 15):
        buffer.add(*call(number))
    assert gathered(buffer) == 5
    assert buffer.table.get([12])["reward"].tolist() == [12]
    for number in range(15, 20):
        buffer.add(*call(number))
    assert buffer.rewards[:20, 0].tolist() == list(range(20))
    for number in range(20, 25):
        buffer.add(*call(number))
    assert buffer.table.stats().inserted == 25


def test_a_call_in_other_dtypes_is_converted_and_gathered():
    both = buffers(64)
    for number in range(40):
        obs, next_obs, action, reward, done, infos = call(number)
        if number % 4 == 1:
            obs = obs.astype(np.float64)  # another dtype
        elif number % 4 == 2:
            next_obs = np.repeat(next_obs, 2, axis=1)[:, ::2]  # not contiguous
        elif number % 4 == 3:
            reward = reward.tolist()  # no array
        for buffer in both:
            buffer.add(obs, next_obs, action, reward, done, infos)
        assert gathered(both[1]) == 1  # as the table stores it
        assert_same_draw(both)


def test_more_calls_than_can_be_gathered_lose_none():
    both = buffers(1000, 3)
    for number in range(300):
        for buffer in both:
            buffer.add(*call(number, 3))
    assert_same_draw(both)
    assert both[1].table.stats().inserted == 900


def test_an_episode_cut_off_is_not_terminated():
    both = buffers(20)
    for number in range(12):
        one = call(number, done=number % 5 == 4)
        for buffer in both:
            buffer.add(*one[:-1], [{"TimeLimit.truncated": number == 4}])
    assert_same_draw(both)
    buffer = both[1]
    assert buffer.dones[:12, 0].tolist() == [float(i in (4, 9)) for i in range(12)]
    assert buffer.timeouts[:12, 0].tolist() == [float(i == 4) for i in range(12)]


def test_draws_follow_the_bit_generator_that_numpy_uses():
    both = buffers(100, 2)
    for number in range(70):
        for buffer in both:
            buffer.add(*call(number, 2))
    before = np.random.get_bit_generator()
    try:
        for generator in (np.random.MT19937, np.random.PCG64, np.random.Philox):
            drawn = []
            for buffer in both:
                np.random.set_bit_generator(generator(3))
                drawn.append([buffer.sample(33).rewards.tolist() for _ in range(3)])
            assert drawn[0] == drawn[1]
    finally:
        np.random.set_bit_generator(before)


def test_a_subclass_that_returns_something_else_for_positions_is_asked():
    class Doubled(ours.ReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            got = super()._get_samples(batch_inds, env)
            return got._replace(rewards=got.rewards * 2)

    buffer = Doubled(10, BOX, ACTION)
    for number in range(3):
        buffer.add(*call(number))
    assert set(buffer.sample(50).rewards.flatten().tolist()) == {0.0, 2.0, 4.0}


def test_an_empty_buffer_has_the_original_s_error():
    errors = []
    for buffer in buffers(10):
        with pytest.raises(ValueError, match="high") as info:
            buffer.sample(4)
        errors.append(str(info.value))
    assert errors[0] == errors[1]


def test_a_forked_process_draws_what_was_gathered_and_adds_nothing():
    buffer = buffers(100)[1]
    for number in range(10):
        buffer.add(*call(number))
    assert gathered(buffer) == 10
    child = os.fork()
    if child == 0:
        right = False
        try:
            drawn = set(buffer.sample(500).rewards.flatten().tolist())
            with pytest.raises(Unsupported, match="the process that made"):
                buffer.add(*call(10))
            right = drawn == set(range(10))
        finally:
            os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    buffer.add(*call(10))
    assert buffer.rewards[:12, 0].tolist() == [*range(11), 0]


def test_a_closed_table_refuses_calls():
    buffer = buffers(100)[1]
    buffer.add(*call(0))
    buffer.table.close()
    with pytest.raises(Exception, match="closed"):
        buffer.add(*call(1))
    with pytest.raises(Exception, match="closed"):
        buffer.sample(1)
