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
    ReplayBuffer,
    Sequences,
    Transitions,
    connect,
)
from async_loader.errors import ConfigError, Timeout
from async_loader.lifecycle import Deadline, Patience

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
            pytest.raises(ConfigError, match="no field 'tsk': did you mean 'task'"),
            AsyncDataLoader(table.source(sampler=Balanced("tsk")), 400) as loader,
        ):
            next(loader)


@pytest.mark.parametrize(
    ("field", "schema", "message"),
    [
        ("tsk", SCHEMA, "steps have no field 'tsk': did you mean 'task'"),
        ("x", {"x": "float32"}, "'x' is float32: store which class"),
        ("x", {"x": "complex64"}, "whole numbers or bools"),
        ("", SCHEMA, "give the name of a field"),
    ],
)
def test_a_field_that_cannot_be_balanced_is_refused(field, schema, message):
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(10, schema, sampler=Balanced(field))
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(10, schema).source(sampler=Balanced(field))
