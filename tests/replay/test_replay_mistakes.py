"""What a new user gets wrong is said at once, in words that name it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_loader import (
    AsyncDataLoader,
    Field,
    Mixture,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Sequences,
    Transitions,
)
from async_loader.errors import ConfigError, OutOfMemory, SchemaError, Timeout
from async_loader.feeder.settings import ServerSettings

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


def test_a_next_observation_that_the_table_reads_by_itself_is_refused_with_the_reason():
    buffer = ReplayBuffer(10, {"obs": Field((), "float32", next="next_obs"), "reward": "float32"})
    with pytest.raises(
        SchemaError,
        match=r"'next_obs' is read from the step that follows .*: leave it out, and "
        "give final_obs=",
    ):
        buffer.add(obs=0.0, next_obs=1.0, reward=0.0)


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda table: table.sample(1, view=["x"]), "give a view"),
        (lambda table: table.source(rank="0", world_size=2), "rank is '0'"),
        (lambda table: table.source(rank=0.5, world_size=2), "rank is 0.5"),
    ],
)
def test_a_wrong_view_or_rank_is_refused(call: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        call(ReplayBuffer(10, STEP))


def test_a_closed_source_that_wanted_priorities_leaves_adding_as_it_was():
    buffer = ReplayBuffer(10, STEP)
    buffer.source(sampler=Prioritized(new_priority="given")).close()
    buffer.add(obs=1.0, reward=0.0)
    assert len(buffer) == 1


def test_a_first_reward_beyond_float32_is_refused_by_a_vector_writer_too():
    writer, no = ReplayBuffer(10).vector_writer(2, autoreset="next_step"), np.zeros(2, np.bool_)
    step = {"obs": np.zeros((2, 3)), "next_obs": np.zeros((2, 3)), "terminated": no}
    with pytest.raises(SchemaError, match="reward"):
        writer.append(**step, reward=np.array([1e300, 1.0]), truncated=no)


def full(**settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(8, STEP, seed=0, **settings)
    for _ in range(8):
        buffer.add(obs=1.0, reward=1.0)
    return buffer


@pytest.mark.parametrize("digits", [17, 20, 400])
@pytest.mark.parametrize(
    "call",
    [
        lambda n: Prioritized(alpha=n),
        lambda n: Prioritized(eps=10**120 * n),
        lambda n: Transitions(gamma=n),
        lambda n: Sequences(4, eta=n),
        lambda n: RateLimiter(samples_per_insert=10**400 * n),
        lambda n: ReplayBuffer(4, {"x": ((n, n), "uint8")}),
        lambda n: ReplayBuffer(4, STEP, max_times_sampled=n),
        lambda n: full(sampler=Prioritized()).add(obs=1.0, reward=1.0, priority=10**120 * n),
        lambda n: full().vector_writer(n, autoreset="next_step"),
        lambda n: full().source(rank=0, world_size=n),
        lambda n: Mixture([(full(), 10**400 * n), (full(), 1)]),
        lambda n: AsyncDataLoader(full(), n),
        lambda n: AsyncDataLoader(full(), 2, prefetch=n),
        lambda n: AsyncDataLoader(full(), 2, slot_bytes=n),
    ],
)
def test_a_number_of_any_size_is_refused_by_an_error_of_the_package(call, digits: int):
    with pytest.raises((ConfigError, SchemaError)):
        call(10**digits)


def test_a_seed_may_be_of_any_size():
    with AsyncDataLoader(full(), 2, seed=10**400) as loader:
        assert len(next(loader)["obs"]) == 2


def test_a_version_may_be_a_time_in_nanoseconds():
    buffer = ReplayBuffer(8, {**STEP, "policy_version": "int64"})
    now = 1_795_862_162_271_114_631
    buffer.add(obs=1.0, reward=1.0, policy_version=now)
    source = buffer.source(max_lag=1)
    source.published(now + 1)
    with pytest.raises(ConfigError, match="version=9223372036854775808: it must be at most"):
        source.published(1 << 63)


def test_a_loader_of_batches_beyond_the_memory_says_so_before_it_starts():
    with pytest.raises(OutOfMemory, match="batch_size=1,000,000,000,000: needs"):
        AsyncDataLoader(full(), 10**12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_of_numpy_become_plain_ones_that_a_save_can_name(tmp_path, kind):
    view = Transitions(2, kind(0.5))
    with full(view=view, sampler=Prioritized(kind(0.5), kind(0.5), kind(0.5))) as buffer:
        buffer.save(tmp_path)
    with ReplayBuffer.from_checkpoint(tmp_path) as loaded:
        assert loaded.view == view
        assert repr(loaded.view) == "Transitions(n_steps=2, gamma=0.5, reward='reward')"


def test_names_of_environments_are_a_list_of_them():
    for streams in (2, "ab"):
        with pytest.raises(ConfigError, match="give a list with a name for each environment"):
            full().vector_writer(2, autoreset="next_step", streams=streams)
