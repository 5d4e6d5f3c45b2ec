"""source(max_lag=...): steps of policies that are too old are not drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from async_loader import AsyncDataLoader, ReplayBuffer, Sequences
from async_loader.errors import ConfigError, Timeout
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.samplers import Fifo, MaxHeap, Prioritized, RankPrioritized, Uniform

SCHEMA = {"x": "int64", "policy_version": "int64"}
NOW = Patience(deadline=Deadline(0.0))


def versions(source, count=200):
    return set(source.draw_now(count).batch["policy_version"].tolist())


def test_steps_too_far_behind_the_newest_are_left_out_and_counted():
    buffer = ReplayBuffer(1_000, SCHEMA, seed=0)
    buffer.extend(x=np.arange(50), policy_version=np.arange(50) // 10)
    source = buffer.source(max_lag=1)
    assert versions(source) == {3, 4}
    assert buffer.stats().stale == 30
    assert "30 were left out as too old" in str(buffer.stats())
    buffer.add(x=50, policy_version=5)
    assert versions(source) == {4, 5}
    assert buffer.stats().stale == 40
    # two actors: the slow one sends what is too old already, and what is just young enough
    buffer.extend(x=np.arange(51, 54), policy_version=np.arange(3, 6))
    assert versions(source) == {4, 5}
    assert buffer.stats().stale == 41
    assert versions(buffer.source()) == {0, 1, 2, 3, 4, 5}
    assert len(buffer) == 54
    source.close()
    assert buffer.stats().stale == 41
    buffer.clear()
    del source
    assert buffer.stats().stale == 41


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers_gets_recent_steps_alone(workers):
    buffer = ReplayBuffer(500, SCHEMA, seed=0, sampler=Prioritized())
    buffer.extend(x=np.arange(100), policy_version=np.arange(100) // 10)
    source = buffer.source(max_lag=0)
    with AsyncDataLoader(source, 16, num_workers=workers, batch_format="numpy") as loader:
        for batch in itertools.islice(loader, 5):
            assert set(batch["policy_version"].tolist()) == {9}
            assert loader.update_priorities(batch["index"], np.ones(16)).applied == 16
            assert batch["weight"].shape == (16,)


@pytest.mark.parametrize(
    "sampler",
    [None, Uniform(replacement=False), Fifo(), Prioritized(), RankPrioritized(), MaxHeap()],
    ids=repr,
)
def test_any_sampler_draws_within_the_lag(sampler):
    buffer = ReplayBuffer(100, SCHEMA, seed=0)
    buffer.extend(x=np.arange(80), policy_version=np.arange(80) // 10)
    source = buffer.source(max_lag=1, sampler=sampler)
    assert set(source.draw_now(20).batch["x"].tolist()) <= set(range(60, 80))
    if sampler is not None and not sampler.repeats:
        with pytest.raises(Timeout):
            source.plan(21, NOW)


@settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
class LagAgainstADict(RuleBasedStateMachine):
    """What can be drawn, of a table that turns over, loses steps and hears of versions."""

    @initialize(max_lag=st.integers(0, 3), remover=st.sampled_from([None, MaxHeap]))
    def start(self, max_lag, remover):
        settings = {} if remover is None else {"remover": remover()}
        self.buffer = ReplayBuffer(20, SCHEMA, seed=0, **settings)
        # without repeats: a draw of all that there is shows all
        self.source = self.buffer.source(max_lag=max_lag, sampler=Fifo())
        self.max_lag, self.newest, self.version_of, self.stale = max_lag, -1, {}, set()

    @rule(ahead=st.lists(st.integers(-5, 2), min_size=1, max_size=9))
    def add(self, ahead):
        made = [max(0, self.newest + one) for one in ahead]
        ids = self.buffer.extend(x=np.arange(len(made)), policy_version=np.array(made))
        for id_, version in zip(ids.tolist(), made, strict=True):
            self.version_of[id_] = version
        self.hear(max(made))

    @rule(ahead=st.integers(-2, 3))
    def publish(self, ahead):
        self.source.published(max(0, self.newest + ahead))
        self.hear(max(0, self.newest + ahead))

    def hear(self, version):
        self.newest = max(self.newest, version)

    @rule(data=st.data())
    def delete(self, data):
        there = self.buffer.get(np.array(sorted(self.version_of), np.int64))["index"].tolist()
        if there:
            self.buffer.delete(np.array(data.draw(st.lists(st.sampled_from(there), max_size=6))))

    @rule()
    def clear(self):
        self.buffer.clear()

    @invariant()
    def those_of_recent_policies_are_drawn_and_no_other(self):
        if not hasattr(self, "buffer"):
            return
        ids = np.array(sorted(self.version_of), np.int64)
        there = self.buffer.get(ids)["index"].tolist() if len(ids) else []
        young = {one for one in there if self.version_of[one] >= self.newest - self.max_lag}
        if not young:
            with pytest.raises(Timeout):
                self.source.plan(1, NOW)
            return
        assert set(self.source.plan(len(young), NOW).index.tolist()) == young
        with pytest.raises((Timeout, ConfigError)):
            self.source.plan(len(young) + 1, NOW)


test_what_is_drawn_is_what_a_dict_says = LagAgainstADict.TestCase


@pytest.mark.parametrize("make", [ReplayBuffer.queue, ReplayBuffer.stack])
def test_old_steps_of_a_queue_are_ended_and_free_their_places(make):
    with make(8, SCHEMA) as buffer:
        source = buffer.source(max_lag=1)
        for version in range(4):
            source.published(version)
            buffer.extend(x=np.arange(4), policy_version=np.full(4, version), timeout_s=0)
        assert (len(buffer), buffer.stats().stale) == (8, 8)
        assert set(source.plan(4, NOW).batch["policy_version"].tolist()) <= {2, 3}
        source.published(9)
        for _ in range(20):
            buffer.add(x=0, policy_version=3, timeout_s=0)  # comes too old
        assert (len(buffer), buffer.stats().stale) == (0, 32)
        buffer.extend(x=np.full(8, 9), policy_version=np.full(8, 9), timeout_s=0)
        assert source.plan(8, NOW).batch["x"].tolist() == [9] * 8


@pytest.mark.parametrize(
    ("table", "keywords", "message"),
    [
        (lambda: ReplayBuffer(10, {"x": "int64"}), {}, "has none of whole numbers: name it"),
        (lambda: ReplayBuffer(10, {"a_version": "i4", "b_version": "i4"}), {}, "a_version, b_v"),
        (lambda: ReplayBuffer(10, {"policy_version": "float32"}), {}, "has none"),
        (lambda: ReplayBuffer(10), {}, "max_lag needs a table: give a schema"),
        (lambda: ReplayBuffer(10, SCHEMA), {"max_lag": -1}, "max_lag is -1"),
        (lambda: ReplayBuffer(10, SCHEMA), {"max_lag": 1.5}, "max_lag is 1.5"),
        (lambda: ReplayBuffer(10, SCHEMA), {"view": Sequences(3)}, "of several versions"),
    ],
)
def test_what_cannot_work_is_refused(table, keywords, message):
    with pytest.raises(ConfigError, match=message):
        table().source(**{"max_lag": 1, **keywords})
