"""Balanced draws every value of a field equally often, and uniformly within a value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sampler_rig import BARELY, surprise

from async_loader import (
    AsyncDataLoader,
    Balanced,
    MaxHeap,
    Mixture,
    ReplayBuffer,
    Sequences,
    Transitions,
    connect,
)
from async_loader.errors import ConfigError, Timeout, Unsupported
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.samplers import Items

SCHEMA = {"x": "int64", "task": "int64"}
NOW = Patience(deadline=Deadline(0.0))
LOOSE = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def filled(tasks, capacity=1_000, **keywords):
    tasks = np.array(tasks)
    buffer = ReplayBuffer(capacity, SCHEMA, **{"sampler": Balanced("task"), "seed": 0, **keywords})
    buffer.extend(x=np.arange(len(tasks)), task=tasks)
    return buffer


@LOOSE
class TableAgainstADict(RuleBasedStateMachine):
    """What is drawn, of a table that turns over, loses steps and has their values changed."""

    @initialize(remover=st.sampled_from([None, MaxHeap]), attached=st.booleans())
    def start(self, remover, attached):
        made = {} if remover is None else {"remover": remover()}
        if not attached:
            made["sampler"] = Balanced("task")
        self.buffer = ReplayBuffer(12, SCHEMA, seed=0, **made)
        self.buffer.extend(x=np.arange(5), task=np.arange(5) // 2)
        self.task_of = {id_: id_ // 2 for id_ in range(5)}
        self.source = self.buffer.source(sampler=Balanced("task") if attached else None)

    @rule(tasks=st.lists(st.integers(0, 3), min_size=1, max_size=20))
    def add(self, tasks):
        ids = self.buffer.extend(x=np.zeros(len(tasks), np.int64), task=np.array(tasks))
        self.task_of |= dict(zip(ids.tolist(), tasks, strict=True))

    @rule(task=st.integers(0, 3))
    def add_one(self, task):
        self.task_of[self.buffer.add(x=0, task=task)] = task

    @rule(data=st.data())
    def update(self, data):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.task_of)), max_size=8))
        tasks = data.draw(st.lists(st.integers(0, 4), min_size=len(ids), max_size=len(ids)))
        self.buffer.update(np.array(ids, np.int64), task=np.array(tasks, np.int64))
        self.task_of |= dict(zip(ids, tasks, strict=True))

    @rule(data=st.data())
    def delete(self, data):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.task_of)), max_size=6))
        self.buffer.delete(np.array(ids, np.int64))

    @rule()
    def clear(self):
        self.buffer.clear()

    @invariant()
    def each_item_is_drawn_and_no_other(self):
        if not hasattr(self, "buffer"):
            return
        there = self.buffer.get(np.array(sorted(self.task_of)))["index"].tolist()
        if not there:
            with pytest.raises(Timeout):
                self.source.plan(1, NOW)
            return
        drawn = self.source.plan(2_000, NOW).index.tolist()
        assert set(drawn) == set(there)
        values = len({self.task_of[one] for one in there})
        counts = np.bincount([self.task_of[one] for one in drawn])
        # eight standard deviations: uniform draws of unequal values are far outside
        assert abs(counts[counts > 0] - 2_000 / values).max() < 8 * np.sqrt(2_000 / values)


test_what_is_drawn_is_what_a_dict_says = TableAgainstADict.TestCase


def test_values_come_equally_often_and_the_items_of_a_value_too():
    tasks = np.repeat([7, -3, 1 << 40], [90, 9, 1])
    buffer = filled(np.random.default_rng(0).permutation(tasks))
    drawn = np.concatenate([buffer.sample(300)["index"] for _ in range(300)])
    assert len(drawn) == 90_000
    tasks = buffer.get(np.arange(100))["task"]
    values, counts = np.unique(tasks[drawn], return_counts=True)
    assert values.tolist() == [-3, 7, 1 << 40]
    assert surprise(counts, np.ones(3)) < BARELY
    each = np.bincount(drawn, minlength=100)
    assert surprise(each, 1 / np.array([(tasks == one).sum() for one in tasks])) < BARELY
    # and the values of a batch follow each other by chance
    pairs = np.unique(np.stack([tasks[drawn[:-1]], tasks[drawn[1:]]]), axis=1, return_counts=True)
    assert surprise(pairs[1], np.ones(9)) < BARELY


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint64"])
def test_bools_and_integers_of_any_size_are_balanced(dtype):
    buffer = ReplayBuffer(100, {"info": {"success": dtype}}, sampler=Balanced("info.success"))
    most = 1 if dtype == "bool" else np.iinfo(dtype).max
    success = np.zeros(100, dtype)
    success[0] = most
    buffer.extend({"info": {"success": success}})
    drawn = buffer.sample(1_000)["info"]["success"]
    assert drawn.dtype == dtype
    assert 400 < (drawn == success[0]).sum() < 600


def test_a_value_that_has_no_items_any_more_is_not_drawn():
    buffer = filled([0] * 5 + [1] * 5, capacity=10)
    buffer.extend(x=np.arange(5), task=np.full(5, 2))
    assert set(buffer.sample(200)["task"].tolist()) == {1, 2}
    buffer.update(np.arange(5, 10), task=np.full(5, 2))
    assert set(buffer.sample(200)["task"].tolist()) == {2}
    buffer.delete(np.arange(5, 14))
    assert set(buffer.sample(200)["index"].tolist()) == {14}


def test_a_sampler_that_is_attached_to_a_full_table_knows_its_items():
    buffer = ReplayBuffer(1_000, SCHEMA, seed=0)
    buffer.extend(x=np.arange(1_500), task=np.arange(1_500) % 100 == 0)
    source = buffer.source(sampler=Balanced("task"))
    assert 400 < source.draw_now(1_000).batch["task"].sum() < 600
    assert buffer.sample(1_000)["task"].sum() < 50
    source.close()
    buffer.update(np.arange(1_000, 1_500), task=np.zeros(500, np.int64))
    assert buffer.sample(1_000)["task"].sum() < 50


def test_two_that_load_a_save_go_on_with_the_same_draws(tmp_path):
    buffer = filled(np.arange(120) % 7 % 3, capacity=50)
    buffer.delete(np.arange(100, 110))
    buffer.update([119, 118], task=np.array([8, 9]))
    buffer.sample(20)
    buffer.save(tmp_path)
    loaded, other = (ReplayBuffer.from_checkpoint(tmp_path) for _ in range(2))
    assert repr(loaded.sampler) == "Balanced('task')"
    for table in (other, loaded):
        table.extend(x=np.arange(5), task=np.arange(5) + 7)
    for _ in range(10):
        assert loaded.sample(20)["index"].tolist() == other.sample(20)["index"].tolist()


@pytest.mark.parametrize("capacity", [50, 30])
def test_a_table_that_loads_has_the_values_of_the_save(tmp_path, capacity):
    buffer = filled(np.arange(50) // 40, capacity=50)
    buffer.save(tmp_path)
    other = filled(np.full(50, 6), capacity=50)
    source = other.source(sampler=Balanced("task"))
    other.load(tmp_path)
    for drawn in (
        other.sample(400),
        source.draw_now(400).batch,
        ReplayBuffer.from_checkpoint(tmp_path, capacity=capacity).sample(400),
    ):
        assert 140 < drawn["task"].sum() < 260
        assert (drawn["task"] == drawn["index"] // 40).all()


def test_equal_seeds_draw_equal_batches():
    def draws(seed):
        return filled(np.arange(60) // 50).source(seed=seed).draw_now(30).batch["index"].tolist()

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def episodes(buffer):
    for task, length in enumerate([30, 6, 12]):
        batch = {"x": np.arange(length), "task": np.full(length, task)}
        ends = np.arange(length) == length - 1
        buffer.extend({**batch, "reward": np.ones(length), "terminated": ends}, stream=0)


LINKED = {**SCHEMA, "reward": "float32", "terminated": "bool"}


@pytest.mark.parametrize("view", [Transitions(3), Sequences(4), Sequences(40, whole=True)])
def test_views_show_every_value_equally_often_too(view):
    buffer = ReplayBuffer(100, LINKED, sampler=Balanced("task"), seed=0, view=view)
    episodes(buffer)
    drawn = buffer.sample(900)["task"]
    counts = np.bincount(drawn if drawn.ndim == 1 else drawn[:, 0], minlength=3)
    assert min(counts) > 220
    # as a view of its own, and after a value was changed that a sequence begins with
    episodes(other := ReplayBuffer(100, LINKED, seed=0))
    source = other.source(sampler=Balanced("task"), view=view)
    other.update(np.arange(30), task=np.full(30, 1))
    counts = np.bincount(other.get(source.plan(900, NOW).index)["task"], minlength=3)
    assert counts[0] == 0
    assert min(counts[1:]) > 350


def test_within_a_lag_the_values_of_recent_steps_are_balanced():
    buffer = ReplayBuffer(100, {**SCHEMA, "policy_version": "int64"}, seed=0)
    version = np.arange(80) // 10
    buffer.extend(x=np.arange(80), task=np.arange(80) // 72, policy_version=version)
    source = buffer.source(max_lag=1, sampler=Balanced("task"))
    batch = source.draw_now(1_000).batch
    assert set(batch["policy_version"].tolist()) == {6, 7}
    assert 400 < batch["task"].sum() < 600
    buffer.update(np.arange(72, 80), task=np.zeros(8, np.int64))
    assert source.draw_now(100).batch["task"].sum() == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_and_a_mixture_draw_by_it(workers):
    offline, online = filled([0] * 90 + [1] * 10), filled(np.arange(100), sampler=None)
    shares = Mixture({offline: 0.5, online: 0.5}, seed=0)
    with AsyncDataLoader(shares, 200, num_workers=workers, batch_format="numpy") as loader:
        batches = [next(loader) for _ in range(5)]
    ones = sum(int(batch["task"][:100].sum()) for batch in batches)
    assert 180 < ones < 320


def test_a_feeder_makes_it_for_a_table_and_for_a_source():
    tables = {
        "one": {"capacity": 1_000, "schema": SCHEMA, "sampler": Balanced("task")},
        "two": {"capacity": 1_000, "sampler": {"kind": "balanced", "field": "task"}},
        "three": {"capacity": 1_000, "schema": SCHEMA},
    }
    with connect("embedded", tables=tables) as client:
        for name in tables:
            with client.table(name).writer() as writer:
                writer.extend(x=np.arange(1_000), task=np.arange(1_000) // 950)
        for name in ("one", "two"):
            assert client.table(name).sample(400)["task"].sum() > 120
        table = client.table("three")
        assert table.sample(400)["task"].sum() < 60
        source = table.source(sampler=Balanced("task"))
        with AsyncDataLoader(source, 400, batch_format="numpy") as loader:
            assert next(loader)["task"].sum() > 120
        with (
            pytest.raises(Unsupported, match="no field 'tsk': did you mean 'task'"),
            AsyncDataLoader(table.source(sampler=Balanced("tsk")), 400) as loader,
        ):
            next(loader)


@pytest.mark.parametrize(
    ("field", "schema", "message"),
    [
        ("tsk", SCHEMA, "steps have no field 'tsk': did you mean 'task'"),
        ("reward", SCHEMA, "steps have no field 'reward': it takes x, task"),
        ("x", {"x": "float32"}, "'x' is float32: store which class"),
        ("x", {"x": ((3,), "int64")}, r"'x' has \[3\]: store the one to balance by"),
        ("x", {"x": "complex64"}, "whole numbers or bools"),
        ("done", {"done": "bool"}, "may change after its step was added"),
        ("", SCHEMA, "give the name of a field"),
        (3, SCHEMA, "give the name of a field"),
    ],
)
def test_a_field_that_cannot_be_balanced_is_refused(field, schema, message):
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(10, schema, sampler=Balanced(field))
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(10, schema).source(sampler=Balanced(field))


def test_a_table_without_a_schema_looks_at_its_first_step():
    buffer = ReplayBuffer(10, sampler=Balanced("task"))
    with pytest.raises(ConfigError, match="no field 'task'"):
        buffer.add(x=1)
    with pytest.raises(ConfigError, match="'task' is float32"):
        buffer.add(x=1, task=0.5)
    assert buffer.schema is None
    buffer.add(x=1, task=5)
    assert buffer.sample(2)["task"].tolist() == [5, 5]
    with pytest.raises(ConfigError, match="needs a table: give a schema"):
        ReplayBuffer(10).source(sampler=Balanced("task"))


@pytest.mark.parametrize("sampler", [Balanced("task")])
def test_a_sampler_that_is_kept_does_not_keep_the_memory_of_its_table(sampler):
    filled([1], sampler=sampler).sample(2)


def test_its_settings_show_and_it_belongs_to_one_table():
    sampler = Balanced("task")
    assert repr(sampler) == "Balanced('task')"
    assert sampler.repeats
    assert not sampler.weighted
    assert not sampler.prioritized
    filled([1], sampler=sampler)
    with pytest.raises(ConfigError, match="another table"):
        filled([1], sampler=sampler)
    other = {"label": "task"}
    with pytest.raises(TypeError, match="say field"):
        Balanced(**other)
    with pytest.raises(ConfigError, match="these items have none"):
        Balanced("task").bind(Items(8), np.random.SeedSequence(0))
