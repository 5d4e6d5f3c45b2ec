"""A usual loop records itself: the table is that of a loop which adds its steps itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip(
    "gymnasium", reason='gymnasium is not installed: pip install "async_loader[demo]"'
)
from gymnasium import spaces  # noqa: E402
from recording_rig import Counter, empty, held, made  # noqa: E402

from async_loader import RateLimiter, ReplayBuffer, connect  # noqa: E402
from async_loader.errors import ConfigError, SchemaError, Timeout  # noqa: E402
from async_loader.recording import Recorder, schema_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("near_feeders")

KINDS = ("table", "writer", "feeder's table", "feeder's writer")


@contextmanager
def opened(kind: str) -> Iterator[tuple[Any, Any]]:
    """A table, and what is given to a recorder: the table or one of its writers."""
    schema = schema_of(Counter())
    with ExitStack() as stack:
        if "feeder" in kind:
            client = stack.enter_context(connect("embedded"))
            table: Any = client.table("replay")
            writes = table if "table" in kind else table.writer(schema=schema)
        else:
            table = stack.enter_context(ReplayBuffer(5_000, None if kind == "table" else schema))
            writes = table if kind == "table" else table.writer()
        if writes is not table:
            stack.enter_context(writes)
        yield table, writes


def play(env: Any, steps: int) -> None:
    env.reset(seed=0)
    for t in range(steps):
        *_, terminated, truncated, _ = env.step(t)
        if terminated or truncated:
            env.reset()


def until_refused(env: Recorder) -> int:
    """Step until a step finds no room, and return its action."""
    for t in range(50):
        try:
            env.step(t)
        except Timeout:
            return t
    raise AssertionError("there was room for 50 steps")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_and_writer_holds_what_the_environment_did(kind):
    with opened(kind) as (table, writes):
        game = Counter(lengths=[3, -2, 5], in_place=True)
        env = Recorder(game, writes)
        play(env, 30)
        env.reset()  # within an episode
        play(env, 4)
        env.close()
        assert held(table) == made(game)


def test_the_table_equals_that_of_a_loop_that_adds_its_steps_itself():
    kept = {}
    for recorded in (True, False):
        game = gymnasium.make("CartPole-v1", max_episode_steps=15)
        table = ReplayBuffer(500, schema_of(game, stack=3), seed=0)
        env, writer = (Recorder(game, table), None) if recorded else (game, table.writer())
        env.action_space.seed(1)
        obs, _ = env.reset(seed=1)
        for _ in range(200):
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            if writer is not None:
                final = after if terminated or truncated else None
                writer.append(
                    obs=obs, action=action, reward=reward, terminated=terminated,
                    truncated=truncated, final_obs=final,
                )  # fmt: skip
            obs = env.reset()[0] if terminated or truncated else after
        if writer is not None:
            writer.end_episode(final_obs=obs)
        env.close()
        kept[recorded] = table.get(np.arange(400))
    assert kept[True].keys() == kept[False].keys()
    for name, values in kept[True].items():
        np.testing.assert_array_equal(values, kept[False][name], name)
    assert kept[True]["truncated"].any()
    assert kept[True]["obs"].shape[1:] == (3, 4)


def test_dicts_and_tuples_are_nested_as_the_spaces_are():
    class Nested(gymnasium.Env):
        observation_space = spaces.Dict(
            {
                "a": spaces.Box(-1, 1, (2,)),
                "b": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(3))),
            }
        )
        action_space = spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (1,))))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    game, table = Nested(), empty()
    env = Recorder(game, table)
    seen, done = [env.reset(seed=3)[0]], []
    for _ in range(20):
        done.append(env.action_space.sample())
        seen.append(env.step(done[-1])[0])
    env.close()
    found = table.get(np.arange(20))
    assert isinstance(found["next_obs"]["b"], tuple)
    for t in range(20):
        for name, now in (("obs", seen[t]), ("next_obs", seen[t + 1])):
            np.testing.assert_array_equal(found[name]["a"][t], now["a"])
            assert found[name]["b"][0][t] == now["b"][0]
            np.testing.assert_array_equal(found[name]["b"][1][t], now["b"][1])
        np.testing.assert_array_equal(found["action"][0][t], done[t][0])
        np.testing.assert_array_equal(found["action"][1][t], done[t][1])


def test_values_that_only_the_actor_knows_are_recorded_with_their_step():
    table, game = empty(), Counter(lengths=[4])
    env = Recorder(game, table, fields={"log_prob": "float32", "version": "int64"})
    outer = gymnasium.wrappers.RecordEpisodeStatistics(env)
    outer.reset()
    for t in range(8):
        outer.get_wrapper_attr("record")(log_prob=-0.5 * t, version=t)
        *_, terminated, truncated, _ = outer.step(t)
        if terminated or truncated:
            outer.reset()
    found = table.get(np.arange(20))
    assert found["version"].tolist() == found["action"].tolist() == list(range(8))
    assert found["log_prob"].tolist() == [-0.5 * t for t in range(8)]

    steps = len(game.log)
    outer.reset()
    with pytest.raises(SchemaError, match=r"a field 'log_prob'.*record\(log_prob="):
        outer.step(0)
    env.record(logprob=0.0)
    with pytest.raises(
        SchemaError, match=r"record\(logprob=.*no such field.*, and waits for log_prob"
    ):
        outer.step(0)
    outer.reset()
    env.record(log_prob=0.0, version=0, value=1.0)
    with pytest.raises(SchemaError, match=r"record\(value=.*no such field"):
        outer.step(0)
    assert len(game.log) == steps  # the environment was not stepped
    env.close()


def test_a_step_that_found_no_room_is_added_when_the_call_is_made_again():
    limiter = RateLimiter(min_size_to_sample=1, samples_per_insert=1, error_buffer=4)
    game = Counter(lengths=[50])
    table = ReplayBuffer(100, schema_of(game), limiter=limiter)
    env = Recorder(game, table, timeout_s=0)
    env.reset()
    until_refused(env)
    done = len(game.log)
    with pytest.raises(Timeout):
        env.step(99)
    assert len(game.log) == done
    table.sample(4)
    obs, reward, *_ = env.step(99)  # the same step, with the action that it was made with
    assert len(game.log) == done
    assert obs[0] == made(game)[-1][-1]
    assert reward == made(game)[-1][2]
    table.sample(2)
    env.close()
    assert held(table) == made(game)


@pytest.mark.parametrize("kind", [one for one in KINDS if "writer" in one])
@pytest.mark.parametrize("named", [False, True])
def test_recorders_that_take_turns_on_one_writer_link_no_steps_of_each_other(kind, named):
    games = [Counter(1_000 * i, lengths=[3, -2, 5]) for i in range(3)]
    with opened(kind) as (table, writer):
        if "feeder" in kind:  # whose writers know the schema of a table that has one
            first = Recorder(Counter(), table)
            play(first, 1)
            first.close()
        before = len(table)
        envs = [
            Recorder(game, writer, stream=f"game {i}" if named else None)
            for i, game in enumerate(games)
        ]
        for env in envs:
            env.reset()
        for t in range(20):
            for env in envs:
                *_, terminated, truncated, _ = env.step(t)
                if terminated or truncated:
                    env.reset()
        for env in envs:
            env.close()
        assert held(table, before) == made(*games)


def test_ctrl_c_in_a_step_breaks_the_episode_off_and_a_reset_goes_on(monkeypatch):
    game = Counter(lengths=[9, 9])
    table = ReplayBuffer(100, schema_of(game))
    with table.writer() as writer:
        env = Recorder(game, writer)
        env.reset()
        env.step(1)
        append = type(writer).append

        def interrupted(self, *args, **fields):
            append(self, *args, **fields)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(writer), "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.step(2)
        with pytest.raises(ConfigError, match=r"call reset\(\) before step"):
            env.step(3)
        env.reset()
        env.step(7)
        env.close()
    assert held(table)[-1] == made(game)[-1]
    assert len(held(table)) == 2  # the interrupted step was given up
