"""Vectors of environments record every step that an environment made, in each autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip(
    "gymnasium", reason='gymnasium is not installed: pip install "async_loader[demo]"'
)
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from recording_rig import Clipping, Counter, empty, held, made  # noqa: E402

from async_loader import RateLimiter, ReplayBuffer, connect  # noqa: E402
from async_loader.errors import Closed, ConfigError, SchemaError, Timeout  # noqa: E402
from async_loader.recording import VectorRecorder, schema_of  # noqa: E402
from async_loader.replay.vector_writer import VectorWriter  # noqa: E402

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
def test_dict_observations_of_every_mode_are_recorded(mode):
    class Named(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Dict({"n": env.observation_space})

        def reset(self, **kwargs):
            obs, info = self.env.reset(**kwargs)
            return {"n": obs}, info

        def step(self, action):
            obs, *rest = self.env.step(action)
            return {"n": obs}, *rest

    games = [Counter(0, [3, -2]), Counter(500, [5])]
    envs = SyncVectorEnv([lambda g=g: Named(g) for g in games], autoreset_mode=mode)
    table = empty()
    recorder = VectorRecorder(envs, table)
    play(recorder, 20)
    recorder.close()
    found = table.get(np.arange(500))
    both = (found["obs"]["n"][:, 0].tolist(), found["next_obs"]["n"][:, 0].tolist())
    assert sorted(zip(*both, strict=True)) == [(step[0], step[-1]) for step in made(*games)]


@pytest.mark.slow
def test_a_feeders_table_holds_the_same():
    with connect("embedded") as client:
        table, all_games = client.table("replay"), []
        for i, mode in enumerate(MODES):
            envs, games = vector(mode, [[3, -2], [4], [-1]], first=10_000 * i)
            recorder = VectorRecorder(envs, table)
            play(recorder, 15, frozenset({7}))
            recorder.close()
            all_games += games
        assert held(table) == made(*all_games)


def test_a_vector_writer_may_be_given_and_stays_open():
    envs, games = vector(AutoresetMode.SAME_STEP, [[3], [-2]])
    table = ReplayBuffer(1_000, schema_of(envs))
    with table.vector_writer(envs) as writer:
        recorder = VectorRecorder(envs, writer)
        play(recorder, 9)
        recorder.close()
        assert not writer.closed
    assert held(table) == made(*games)
    with (
        table.vector_writer(3, autoreset="next_step") as other,
        pytest.raises(ConfigError, match="for 3 environments"),
    ):
        VectorRecorder(envs, other)


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


def test_arrays_that_only_the_actor_knows_are_recorded_with_their_step():
    envs, _ = vector(AutoresetMode.NEXT_STEP, [[2], [3]])
    table = empty()
    recorder = VectorRecorder(envs, table, fields={"value": "float32"})
    recorder.reset()
    for t in range(10):
        recorder.record(value=np.arange(2) + t)
        recorder.step(np.arange(2) + t)
    with pytest.raises(SchemaError, match=r"record\(value="):
        recorder.step(np.arange(2))
    recorder.close()
    found = table.get(np.arange(50))
    assert len(found["value"]) > 10
    assert found["value"].tolist() == found["action"].tolist()


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


class ClippingVector(SyncVectorEnv):
    """Clips the actions of all environments in place before it gives each its own."""

    def step(self, actions):
        np.clip(actions["turn"], -1, 1, out=actions["turn"])
        return super().step(actions)


def test_actions_that_the_environments_change_are_recorded_as_they_were_given():
    table = empty()
    recorder = VectorRecorder(ClippingVector([Clipping, Clipping]), table)
    recorder.reset()
    turns = np.array([[3, -4], [1, 2]], np.float32)
    recorder.step({"turn": turns.copy()})
    recorder.close()
    assert table.get(np.arange(2))["action"]["turn"].tolist() == turns.tolist()


def test_a_forgotten_reset_is_named():
    envs, games = vector(AutoresetMode.DISABLED, [[2], [3]])
    table = empty()
    recorder = VectorRecorder(envs, table)
    recorder.reset()
    for _ in range(2):
        recorder.step(np.zeros(2, int))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"environments \[0\].*reset_mask"):
            recorder.step(np.zeros(2, int))
    recorder.reset(options={"reset_mask": np.array([True, False])})
    *_, terminated, _, _ = recorder.step(np.zeros(2, int))
    assert terminated.tolist() == [False, True]
    with pytest.raises(ConfigError, match=r"environments \[1\]"):
        recorder.step(np.zeros(2, int))
    recorder.reset()
    recorder.step(np.zeros(2, int))
    recorder.close()
    assert held(table) == made(*games)


def test_a_recorder_closes_without_an_error_after_its_table():
    table = empty()
    envs = VectorRecorder(gymnasium.make_vec("CartPole-v1", 2), table)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    table.close()
    envs.close()


def test_a_writer_is_for_one_recorder_at_a_time():
    one, _ = vector(AutoresetMode.NEXT_STEP, [[9], [9]])
    two, games = vector(AutoresetMode.NEXT_STEP, [[9], [9]], first=50_000)
    table = ReplayBuffer(5_000, schema_of(one))
    with table.vector_writer(one) as writer:
        first = VectorRecorder(one, writer)
        with pytest.raises(ConfigError, match="another recorder writes with this writer"):
            VectorRecorder(two, writer)
        first.close()
        second = VectorRecorder(two, writer)
        second.reset()
        second.step(np.arange(2))
        second.close()
    assert held(table) == made(*games)


def test_ctrl_c_in_a_step_breaks_the_episodes_off_and_a_reset_goes_on(monkeypatch):
    envs, games = vector(AutoresetMode.NEXT_STEP, [[9], [9]])
    table = empty()
    env = VectorRecorder(envs, table)
    env.reset()

    def interrupted(self, **fields):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(VectorWriter, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.arange(2))
    with pytest.raises(ConfigError, match=r"call reset\(\) before step"):
        env.step(np.arange(2))
    env.reset()
    env.step(np.arange(2))
    env.close()
    assert held(table) == [log for game in games for log in made(game)[1:]]
