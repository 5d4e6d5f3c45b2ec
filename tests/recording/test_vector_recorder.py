"""Vectors of environments record every step that an environment made, in each autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_rig import Counter, empty, held, made

from async_loader import RateLimiter, ReplayBuffer
from async_loader.errors import Closed, ConfigError, Timeout
from async_loader.recording import VectorRecorder, schema_of

MODES = list(AutoresetMode)
LENGTHS = st.lists(st.integers(-4, 6).filter(bool), min_size=1, max_size=4)


def vector(
    mode: AutoresetMode, lengths: list[list[int]], first: int = 0
) -> tuple[Any, list[Counter]]:
    games = [Counter(first + 1_000 * i, some) for i, some in enumerate(lengths)]
    return SyncVectorEnv([lambda g=g: g for g in games], autoreset_mode=mode), games


def play(envs: Any, calls: int, resets: frozenset[int] = frozenset()) -> None:
    """Step, and reset as the mode asks; ``resets``: calls before which all are reset."""
    envs.reset()
    for t in range(calls):
        if t in resets:
            envs.reset()
        actions = np.arange(envs.num_envs) + t
        *_, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})


def stacks(games: list[Counter], depth: int) -> dict[int, list[int]]:
    """The numbers of the stack that ends with each observation."""
    return {
        number: [episode[max(0, at - back)] for back in reversed(range(depth))]
        for game in games
        for episode in game.episodes
        for at, number in enumerate(episode)
    }


@settings(max_examples=25)
@given(
    mode=st.sampled_from(MODES),
    lengths=st.lists(LENGTHS, min_size=1, max_size=4),
    calls=st.integers(1, 25),
    resets=st.frozensets(st.integers(0, 25), max_size=3),
    depth=st.integers(1, 3),
)
def test_the_table_holds_each_step_once_with_its_stack_and_its_final_observation(
    mode, lengths, calls, resets, depth
):
    envs, games = vector(mode, lengths)
    table = empty()
    recorder = VectorRecorder(envs, table, stack=depth)
    play(recorder, calls, resets)
    recorder.close()
    assert held(table) == made(*games)
    if depth > 1:
        whole, found = stacks(games, depth), table.get(np.arange(5_000))
        for name in ("obs", "next_obs"):
            for stack in found[name][..., 0].tolist():
                assert stack == whole[stack[-1]]
    table.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_call_that_found_no_room_is_added_when_it_is_made_again(mode):
    envs, games = vector(mode, [[2], [-3]])
    limiter = RateLimiter(min_size_to_sample=2, samples_per_insert=1, error_buffer=8)
    table = ReplayBuffer(1_000, schema_of(envs), limiter=limiter)
    recorder = VectorRecorder(envs, table, timeout_s=0)
    recorder.reset()
    again = 0
    for t in range(30):
        while True:
            steps = sum(len(game.log) for game in games)
            try:
                *_, terminated, truncated, _ = recorder.step(np.full(2, t))
                break
            except Timeout:
                again += 1
                assert sum(len(game.log) for game in games) >= steps
                table.sample(2)
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            recorder.reset(options={"reset_mask": terminated | truncated})
    recorder.close()
    assert again > 3
    assert held(table) == made(*games)


def test_what_cannot_be_recorded_says_why():
    envs, _ = vector(AutoresetMode.NEXT_STEP, [[2]])
    recorder = VectorRecorder(envs, empty())
    with pytest.raises(ConfigError, match=r"call reset\(\) before step"):
        recorder.step(np.zeros(1, np.int64))
    recorder.close()
    with pytest.raises(Closed):
        recorder.reset()
    with pytest.raises(ConfigError, match="Recorder records one environment"):
        VectorRecorder(Counter(), empty())
