"""Hindsight goals, against a list of episodes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    AsyncDataLoader,
    Field,
    Hindsight,
    Prioritized,
    ReplayBuffer,
    Uniform,
    errors,
)
from tests.goal_rig import LINKED, MOVES, STORED, VIEWS, Episodes, play


def played(moves: list[Any], linked: bool, **settings: Any) -> Episodes:
    buffer = ReplayBuffer(schema=LINKED if linked else STORED, seed=0, **settings)
    model = Episodes(buffer, linked, buffer.add, buffer.end_episode)
    play(model, moves)
    return model


@settings(deadline=None, max_examples=150)
@given(view=VIEWS, moves=MOVES, linked=st.booleans(), prioritized=st.booleans())
def test_draws_show_goals_that_their_episode_achieved(view, moves, linked, prioritized):
    sampler = Prioritized() if prioritized else Uniform()
    model = played(moves, linked, capacity=300, view=view, sampler=sampler)
    assert len(model.table) == model.drawable(view)
    if len(model.table):
        model.check(model.table.sample(60), view)
        ids = [step.name for episode in model.all for step in episode.steps]
        batch = model.table.get(ids)
        assert len(batch["index"]) >= len(model.table)
        model.check(batch, view)


@settings(deadline=None, max_examples=60)
@given(
    view=VIEWS,
    rounds=st.lists(MOVES, min_size=2, max_size=6),
    linked=st.booleans(),
    capacity=st.sampled_from([12, 30, 300]),
)
def test_goals_stay_right_while_steps_come_and_go(view, rounds, linked, capacity):
    model = played([], linked, capacity=capacity, view=view)
    for moves in rounds:
        play(model, moves)
        if len(model.table):
            model.check(model.table.sample(20), view)


def no_reward(achieved: Any, desired: Any, info: dict[str, Any]) -> Any:
    return np.zeros(len(achieved))


FLAT = {
    "observation": Field((), "float32", next="next_observation"),
    "achieved_goal": Field((), "int64", next="next_achieved_goal"),
    "desired_goal": Field((), "int64", next="next_desired_goal"),
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
}


def flat_step(achieved: int) -> dict[str, Any]:
    return {"observation": 0.0, "achieved_goal": achieved, "desired_goal": -1}


def flat_episodes(lengths: list[int], **settings: Any) -> ReplayBuffer:
    """Episodes whose observation t of episode e achieves 100,000 * e + t."""
    settings = {"capacity": 20_000, "seed": 0, **settings}
    buffer = ReplayBuffer(schema=FLAT, **settings)
    add_episodes(buffer, lengths)
    return buffer


def add_episodes(buffer: ReplayBuffer, lengths: list[int], start: int = 0) -> None:
    for e, length in enumerate(lengths, start):
        for t in range(length):
            last = t == length - 1
            final = {"final_obs": flat_step(100_000 * e + length)} if last else {}
            step = flat_step(100_000 * e + t)
            buffer.add(**step, reward=-1.0, terminated=False, truncated=last, **final)


def chi_square(counts: np.ndarray[Any, Any]) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("strategy", "goals"),
    [("future", range(11, 31)), ("final", range(30, 31)), ("episode", range(1, 31))],
)
def test_each_goal_of_a_strategy_is_equally_likely(strategy, goals):
    buffer = flat_episodes([5, 30, 5], view=Hindsight(no_reward, strategy=strategy))
    batch = buffer.get([6 + 10] * 20_000)  # the step 10 of the second episode
    assert (batch["achieved_goal"] == 100_010).all()
    assert np.mean(batch["relabelled"]) == pytest.approx(0.8, abs=0.02)
    chosen = batch["desired_goal"][batch["relabelled"]] - 100_000
    counts = np.bincount(chosen, minlength=40)
    assert counts.sum() == sum(counts[goal] for goal in goals)
    assert chi_square(counts[goals.start : goals.stop]) < 60  # 29 degrees of freedom: 1 in 1000


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized()])
def test_equal_seeds_give_equal_goals_with_any_number_of_workers(sampler):
    seen = []
    for num_workers in (0, 2):
        buffer = flat_episodes([20, 30, 9], sampler=sampler.__class__())
        buffer.sample(7, view=Hindsight(no_reward))
        source = buffer.source(view=Hindsight(no_reward, strategy="episode"), seed=3)
        with AsyncDataLoader(source, 64, num_workers=num_workers, prefetch=1) as loader:
            batches = [next(loader) for _ in range(3)]
        seen.append([(one["index"].tolist(), one["desired_goal"].tolist()) for one in batches])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_compute_rewards_where_they_make_batches(num_workers):
    offset = 0.5

    def reward(achieved: Any, desired: Any, info: dict[str, Any]) -> Any:
        return torch.as_tensor(achieved == desired).float()[:, None] + offset

    buffer = flat_episodes([30] * 4, view=Hindsight(reward), sampler=Prioritized())
    with AsyncDataLoader(buffer, 128, num_workers=num_workers) as loader:
        for _ in range(3):
            batch = next(loader)
            reached = batch["next_achieved_goal"] == batch["desired_goal"]
            wanted = torch.where(batch["relabelled"], reached.float() + offset, -1.0)
            assert (batch["reward"] == wanted).all()
            assert reached.any()
            assert batch["weight"].shape == (128,)
            loader.update_priorities(batch["index"], torch.ones(128))


def test_no_goal_is_of_another_episode_while_a_thread_overwrites_steps():
    view = Hindsight(no_reward, strategy="episode", relabel_fraction=1.0, n_steps=2)
    buffer = flat_episodes([20] * 5, capacity=100, view=view)
    done = threading.Event()

    def write() -> None:
        goals = 500_000 + np.arange(20)
        while not done.is_set():
            zeros = {name: np.zeros(20, np.float32) for name in ("observation", "reward")}
            ends = {name: np.zeros(20, np.bool_) for name in ("terminated", "truncated")}
            buffer.extend(achieved_goal=goals, desired_goal=-goals, **zeros, **ends, stream=0)
            buffer.end_episode(final_obs=flat_step(int(goals[-1]) + 1), stream=0)
            goals = goals + 100_000

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            batch = buffer.sample(64, timeout_s=30)
            new = batch["relabelled"]
            same = batch["desired_goal"] // 100_000 == batch["achieved_goal"] // 100_000
            assert same[new].all()
            assert (batch["desired_goal"][new] % 100_000 > 0).all()
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reward_function_that_is_not_vectorised_is_refused(num_workers):
    view = Hindsight(lambda achieved, desired, info: 1.0)
    buffer = flat_episodes([30], view=view)
    with (
        AsyncDataLoader(buffer, 32, num_workers=num_workers) as loader,
        pytest.raises(errors.ConfigError, match="return one number for each"),
    ):
        next(loader)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compute_reward": 3}, "compute_reward=3"),
        ({"compute_terminated": 3}, "compute_terminated=3"),
        ({"relabel_fraction": 4}, "relabel_fraction=4"),
        ({"n_steps": 0}, "n_steps=0"),
        ({"info": [1]}, "info=1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(errors.ConfigError, match=message):
        Hindsight(**{"compute_reward": no_reward, **settings})


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"achieved_goal": None}, {}, "achieved='achieved_goal': steps have observation"),
        ({"achieved_goal": ((), "int64")}, {}, "next='next_achieved_goal'"),
        ({"reward": ((2,), "float32")}, {}, "the reward of another goal is a float"),
        ({}, {"info": "action"}, "info='action'"),
    ],
)
def test_a_table_that_lacks_what_goals_need_says_why(fields, settings, message):
    schema = {name: field for name, field in {**FLAT, **fields}.items() if field is not None}
    with pytest.raises(errors.ConfigError, match=message):
        ReplayBuffer(100, schema, view=Hindsight(no_reward, **settings))


def sixty_steps() -> ReplayBuffer:
    goal = Field((), "int64", next="next_obs")
    schema = {"obs": {"achieved_goal": goal, "desired_goal": goal}, "reward": "float32"}
    buffer = ReplayBuffer(300, schema, seed=1)
    for t in range(60):
        buffer.add(obs={"achieved_goal": t, "desired_goal": -1}, reward=0.0)
    return buffer


def test_goals_of_a_source_without_a_seed_are_the_same_with_workers():
    seen = []
    for workers in (0, 2):
        source = sixty_steps().source(view=Hindsight(no_reward, relabel_fraction=1.0))
        with AsyncDataLoader(source, 8, num_workers=workers, seed=2) as loader:
            seen.append(next(loader)["obs"]["desired_goal"].tolist())
    assert seen[0] == seen[1]


def test_views_made_anew_for_each_call_keep_few_readers():
    buffer = sixty_steps()
    for _ in range(40):
        buffer.sample(4, view=Hindsight(lambda achieved, *_: np.zeros(len(achieved))))
    assert len(buffer._table_state._read_plans) == len(buffer._table_state._idle) < 10
