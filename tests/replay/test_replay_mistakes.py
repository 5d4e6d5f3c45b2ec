"""What a new user gets wrong is said at once, in words that name it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from async_loader import (
    AsyncDataLoader,
    Field,
    MinSize,
    Prioritized,
    ReplayBuffer,
    Sequences,
    Transitions,
    Uniform,
)
from async_loader.errors import CannotSend, ConfigError, SchemaError, Timeout
from async_loader.feeder.settings import ServerSettings
from async_loader.source import Applied

STEP = {"obs": "float32", "reward": "float32"}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"obs": 1.0}, "lacks 'reward'"),
        ({"obs": 1.0, "reward": 1.0, "extra": 2}, "has also 'extra'"),
        ({}, "lacks 'obs', 'reward'"),
    ],
)
def test_a_field_that_is_missing_or_too_many_is_named(step: dict[str, Any], said: str):
    with pytest.raises(SchemaError, match=said):
        ReplayBuffer(10, STEP).add(step)


def test_an_invalid_limiter_is_refused_and_the_old_one_stays():
    limiter = MinSize(3)
    buffer = ReplayBuffer(10, STEP, limiter=limiter)
    with pytest.raises(ConfigError, match="limiter=8"):
        buffer.limiter = 8  # type: ignore[assignment]
    assert buffer.limiter is limiter


def test_a_limiter_that_waits_for_more_than_the_capacity_is_refused():
    with pytest.raises(ConfigError, match="keeps 10 steps"):
        ReplayBuffer(10, STEP, limiter=MinSize(11))
    buffer = ReplayBuffer(10, STEP, limiter=MinSize(10))
    with pytest.raises(ConfigError, match="keeps 10 steps"):
        buffer.limiter = MinSize(11)


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
def test_an_invalid_seed_is_refused(seed: Any):
    with pytest.raises(ConfigError, match="seed="):
        ReplayBuffer(10, seed=seed)


def test_priorities_of_an_empty_prioritized_table_are_stale_before_and_after_its_schema_is_known():
    for schema in (None, STEP):
        assert ReplayBuffer(10, schema, sampler=Prioritized()).update_priorities(
            [0], [1.0]
        ) == Applied(0, 1)


def test_a_prioritized_sampler_beside_a_uniform_one_gets_priorities():
    buffer = ReplayBuffer(10, STEP, seed=0)
    ids = buffer.extend(obs=np.arange(10), reward=np.zeros(10))
    source = buffer.source(sampler=Prioritized(alpha=1.0, eps=0.0))
    assert source.update_priorities(ids, np.where(ids == 4, 1.0, 0.0)) == Applied(10, 0)
    drawn = source.plan(32, None)  # type: ignore[arg-type]  # it need not wait
    assert set(drawn.index.reshape(32, -1)[:, 0].tolist()) == {4}
    assert len(set(buffer.sample(100)["index"].tolist())) == 10


def test_a_next_observation_that_the_table_reads_by_itself_is_refused_with_the_reason():
    buffer = ReplayBuffer(10, {"obs": Field((), "float32", next="next_obs"), "reward": "float32"})
    with pytest.raises(
        SchemaError,
        match=r"'next_obs' is read from the step that follows .*: leave it out, and "
        "give final_obs=",
    ):
        buffer.add(obs=0.0, next_obs=1.0, reward=0.0)


def test_a_wrong_word_for_what_an_addition_takes_beside_fields_is_answered_with_ours():
    with pytest.raises(SchemaError, match="'timeout' is no field of it: say timeout_s"):
        ReplayBuffer(10, STEP).add(obs=1.0, reward=1.0, timeout=3)


@pytest.mark.parametrize("name", ["sampler", "remover"])
def test_a_class_in_the_place_of_a_sampler_is_refused(name: str):
    with pytest.raises(
        ConfigError,
        match=rf"{name} is the class Prioritized: give an instance, as in {name}=Prioritized\(\)",
    ):
        ReplayBuffer(10, STEP, **{name: Prioritized})  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", [Uniform, "uniform"])
def test_a_source_takes_samplers_only(sampler: Any):
    with pytest.raises(ConfigError, match=r"give an instance, as in|give a sampler, as in"):
        ReplayBuffer(10, STEP).source(sampler=sampler)


def test_a_queue_says_how_many_items_may_wait():
    queue = ReplayBuffer.queue(2, STEP)
    for _ in range(2):
        queue.add(obs=1.0, reward=1.0)
    with pytest.raises(
        Timeout, match="2 items that wait to be sampled, and at most 2 may: sample at least 1 more"
    ):
        queue.add(obs=1.0, reward=1.0, timeout_s=0)
    with pytest.raises(
        ConfigError,
        match=r"3 can never be sampled .*at most 2 items wait here.* a size of 3 or more",
    ):
        queue.sample(3)


def test_what_stays_in_its_process_says_what_travels_instead():
    buffer = ReplayBuffer(10, STEP)
    with AsyncDataLoader(buffer.source(), 2) as loader:
        for one, said in (
            (buffer, r"send the reader\(\) of its source\(\)"),
            (buffer.writer(), r"write from another one to a feeder"),
            (buffer.source(), r"send its reader\(\)"),
            (loader, "make one where its batches are used"),
        ):
            with pytest.raises(CannotSend, match=said):
                pickle.dumps(one)


@pytest.mark.parametrize("told", ["by its schema", "by its view", "by a call"])
@pytest.mark.parametrize(
    ("name", "dtype", "meant"),
    [
        ("dones", "float32", "terminated"),
        ("is_terminal", "uint8", "terminated"),
        ("episode_end", "bool", "terminated"),
        ("isLast", "bool", "terminated"),
        ("truncations", "bool", "truncated"),
        ("time_outs", "bool", "truncated"),
    ],
)
def test_an_end_under_another_name_is_refused_where_steps_are_shown_with_others(
    name: str, dtype: str, meant: str, told: str
):
    linked = {"obs": Field((), "float32", next="next_obs" * (told == "by its schema") or None)}
    schema = {**linked, "reward": "float32", name: dtype}
    view = Transitions(n_steps=3) if told == "by its view" else None
    step = {"obs": 1.0, "reward": 0.0, name: np.zeros((), dtype)}
    said = f"field '{name}' ends no episode.* name it '{meant}'"
    if told == "by a call":
        buffer = ReplayBuffer(10)
        buffer.add(step)
        for call in (buffer.sample, buffer.source, buffer.get):
            arguments = () if call == buffer.source else (1,) if call == buffer.sample else ([0],)
            with pytest.raises(ConfigError, match=said):
                call(*arguments, view=Sequences(2))  # type: ignore[operator]
        assert buffer.sample(1)[name].shape == (1,)
    else:
        with pytest.raises(ConfigError, match=said):
            ReplayBuffer(10, schema, view=view)
        with pytest.raises(ConfigError, match="tables.one: " + said):
            ServerSettings.from_plain({"one": {"capacity": 10, "schema": schema, "view": view}})
    ReplayBuffer(10, {**schema, "done": "bool"}, view=view)
    ReplayBuffer(10, {**schema, name: ((3,), dtype)}, view=view)  # one for each agent


@pytest.mark.parametrize("name", ["last_action", "weekend", "finality", "duration", "timeout"])
def test_names_that_may_mean_something_else_are_taken(name: str):
    ReplayBuffer(10, {"x": "int64", name: "float32", "reward": "float32"}, view=Transitions(2))
