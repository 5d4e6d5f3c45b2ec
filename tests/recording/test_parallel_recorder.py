"""Parallel environments record one stream for each agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recording_rig import Counter, empty, held, made

from async_loader import RateLimiter, ReplayBuffer
from async_loader.errors import SchemaError, Timeout
from async_loader.recording import ParallelRecorder, schema_of


class Together:
    """Counters that are played at the same time, in PettingZoo's way: who has ended leaves."""

    def __init__(self, **lengths: list[int]) -> None:
        self.games = {
            name: Counter(1_000 * i, some) for i, (name, some) in enumerate(lengths.items())
        }
        self.possible_agents = list(self.games)
        self.agents: list[str] = []
        self.closed, self.metadata = False, {"name": "together"}

    def observation_space(self, agent: str) -> Any:
        return self.games[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self.games[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.games)
        return {name: game.reset(seed=seed)[0] for name, game in self.games.items()}, {}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        made = {name: self.games[name].step(action) for name, action in actions.items()}
        self.agents = [name for name in self.agents if not (made[name][2] or made[name][3])]
        return tuple({name: one[i] for name, one in made.items()} for i in range(5))

    def close(self) -> None:
        self.closed = True


def logs(env: Together) -> list[Any]:
    return made(*env.games.values())


def play(env: Any, steps: int) -> None:
    env.reset()
    for t in range(steps):
        env.step(dict.fromkeys(env.agents, t))
        if not env.agents:
            env.reset()


def test_agents_that_leave_end_their_episodes_and_the_others_go_on():
    game, table = Together(a=[3, -2], b=[5], c=[-4]), empty()
    env = ParallelRecorder(game, table)
    play(env, 20)
    env.reset()
    play(env, 3)
    env.close()
    assert game.closed
    assert held(table) == logs(game)


def test_a_field_named_agent_says_whose_step_it_is():
    game, table = Together(a=[3], b=[4]), empty()
    fields = {"agent": "int64", "value": "float32"}
    env = ParallelRecorder(game, table, fields=fields, stack=2)
    env.reset()
    for t in range(3):
        env.record(value={"a": t, "b": 10 + t})
        env.step(dict.fromkeys(env.agents, t))
    env.close()
    found = table.get(np.arange(50))
    assert (found["agent"] == found["obs"][:, -1, 0] // 1_000).all()
    assert (found["value"] == 10 * found["agent"] + found["action"]).all()
    assert (found["obs"][:, 0, 0] // 1_000 == found["agent"]).all()  # no stack over two agents
    env = ParallelRecorder(game, table)
    env.reset()
    env.record(value={"a": 1})
    with pytest.raises(SchemaError, match="no value of agent 'b'"):
        env.step({"a": 0, "b": 0})


def test_a_step_that_found_no_room_for_some_agents_is_finished_by_the_next_call():
    game = Together(a=[9], b=[9])
    limiter = RateLimiter(min_size_to_sample=1, samples_per_insert=1, error_buffer=5)
    table = ReplayBuffer(500, schema_of(game), limiter=limiter)
    env = ParallelRecorder(game, table, timeout_s=0)
    env.reset()
    again = 0
    for t in range(8):
        for _ in range(99):
            try:
                env.step(dict.fromkeys(game.possible_agents, t))
                break
            except Timeout:
                again += 1
                table.sample(1)
    assert again > 3
    for _ in range(4):
        table.sample(1)
    env.close()
    assert held(table) == logs(game)
    assert len(logs(game)) == 16


def test_an_environment_of_pettingzoo_records_itself():
    pettingzoo = pytest.importorskip(
        "pettingzoo", reason='pettingzoo is not installed: pip install "async_loader[pettingzoo]"'
    )

    class Real(Together, pettingzoo.ParallelEnv):
        pass

    game, table = Real(a=[3], b=[-4]), empty()
    env = ParallelRecorder(pettingzoo.utils.wrappers.BaseParallelWrapper(game), table)
    play(env, 12)
    env.close()
    assert held(table) == logs(game)
