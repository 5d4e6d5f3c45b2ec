"""source(max_lag=...) of a feeder's table: steps of policies that are too old are not drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from thread_rig import Feeder

from async_loader import AsyncDataLoader, Prioritized, ReplayBuffer, Sequences, Transitions
from async_loader.errors import ConfigError, Unsupported
from async_loader.feeder import connect
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.buffer import shared_table
from async_loader.replay.samplers import Fifo
from async_loader.replay.table.nonblocking_table import NonblockingTable

SCHEMA = {"x": "int64", "policy_version": "int64"}
WEIGHTS = {"w": np.zeros(1)}


def served(tmp_path, versions=(), **made):
    buffer = ReplayBuffer(1_000, SCHEMA, seed=0, **made)
    for version in versions:
        buffer.add(x=version, policy_version=version)
    return Feeder(tmp_path, {"t": buffer}), buffer


def plan(source, count=100):
    return source.plan(count, Patience(deadline=Deadline(60.0))).batch


def drawn(source, count=100):
    return set(plan(source, count)["policy_version"].tolist())


def source_of(table, max_lag, **settings):
    return table.source(max_lag=max_lag, prefetch=0, **settings)


@pytest.mark.parametrize(("transport", "num_workers"), [("shm", 0), ("tcp", 2)])
def test_a_loader_draws_by_priorities_within_the_lag(tmp_path, transport, num_workers):
    versions = np.arange(100) // 10
    feeder, _ = served(tmp_path, versions.tolist(), sampler=Prioritized(alpha=1.0, eps=0.0))
    try:
        with connect(feeder.address) as client:
            source = client.table("t").source(
                max_lag=2, transport=transport, view=Transitions(reward="x"), prefetch=1
            )
            with AsyncDataLoader(source, 64, num_workers=num_workers, prefetch=1) as loader:
                batch = next(loader)
                assert set(batch["policy_version"].tolist()) <= {7, 8, 9}
                assert batch["weight"].shape == (64,)
                ids = np.arange(70, 100)
                priority = np.where(ids == 75, 1.0, 0.0)
                assert loader.update_priorities(ids, priority).applied == 30
            batch = plan(source_of(client.table("t"), 2))
            assert set(batch["index"].tolist()) == {75}
            source.close()
    finally:
        feeder.close()


def test_a_table_that_is_loaded_begins_with_the_versions_of_the_save(tmp_path):
    saved = ReplayBuffer(1_000, SCHEMA, seed=0)
    saved.extend(x=np.arange(4), policy_version=np.arange(4))
    saved.save(tmp_path / "save")
    tables = {"t": {"capacity": 1_000, "schema": SCHEMA}}
    with connect("embedded", tables=tables) as client:
        table = client.table("t")
        with table.writer() as writer:
            writer.append(x=1, policy_version=70)
            writer.flush()
            source = source_of(table, 1)
            assert drawn(source) == {70}
            table.load(tmp_path / "save")
            assert drawn(source) == {2, 3}
            client.publish("policy", WEIGHTS, version=4)
            assert drawn(source) == {3}


@pytest.mark.parametrize(
    ("made", "keywords", "message"),
    [
        ({}, {"max_lag": -1}, "max_lag is -1"),
        ({}, {"max_lag": 1.5}, "max_lag is 1.5"),
        ({}, {"max_lag": 1, "view": Sequences(3)}, "of several versions"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, made, keywords, message):
    feeder, _ = served(tmp_path, range(10), **made)
    try:
        with (
            connect(feeder.address) as client,
            pytest.raises((ConfigError, Unsupported), match=message),
        ):
            plan(client.table("t").source(**keywords), 2)
    finally:
        feeder.close()


class PublicationsAgainstADict(RuleBasedStateMachine):
    """What a feeder's reader draws: runs begin again, old actors go on, steps come before their
    version, the table turns over, readers open late.
    """

    @initialize(max_lag=st.integers(0, 3), told=st.booleans())
    def start(self, max_lag, told):
        self.buffer = ReplayBuffer(20, SCHEMA, seed=0)
        self.buffer.add(x=0, policy_version=3)
        self.table = NonblockingTable(shared_table(self.buffer))
        self.max_lag, self.newest, self.told = max_lag, 3, False
        self.stale = 0
        self.version_of = self.young = {0: 3}
        self.drawing = self.opened()
        assert self.drawing.weights == "policy"
        self.counts = told  # before, a step is left out in the call that removes another
        if told:
            self.publish(4)

    def opened(self):
        # without repeats: a draw of all that there is shows all
        return self.table.drawing(
            None, 0, 1, None, Fifo(), max_lag=self.max_lag,
            newest_of={"policy": self.newest if self.told else None}.get,
        )  # fmt: skip

    @rule(made=st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def add(self, made):
        made = np.array(made)
        ids = self.buffer.extend(x=made, policy_version=made).tolist()
        if not self.told:
            self.see(max(self.newest, int(made.max())))
        new = dict(zip(ids, made.tolist(), strict=True))
        self.version_of = {**self.version_of, **new}
        self.sort(new)
        self.forget_the_removed()

    def sort(self, steps, opened=False):
        for id_, version in steps.items():
            other_run = version > self.newest and opened and self.told
            if version >= self.newest - self.max_lag and not other_run:
                self.young = {**self.young, id_: version}
            else:
                self.stale += 1

    @rule(version=st.integers(0, 9))
    def publish(self, version):
        self.told = True
        self.drawing.publish(version)
        if version < self.newest:
            self.stale += len(self.young)
            self.young = {}
        self.see(version)
        left = {id_: one for id_, one in self.young.items() if one <= version}
        self.stale, self.young = self.stale + len(self.young) - len(left), left

    def see(self, version):
        self.newest = version
        known, self.young = self.young, {}
        self.sort(known)

    @rule(data=st.data())
    def delete(self, data):
        there = sorted(self.there())
        if there:
            some = data.draw(st.lists(st.sampled_from(there), max_size=6))
            self.buffer.delete(np.array(some, np.int64))
            self.forget_the_removed()

    @rule()
    def open_again(self):
        self.drawing.close()
        steps = {id_: one for id_, one in self.version_of.items() if id_ in self.there()}
        self.young = {}
        if not self.told:
            self.newest = max(steps.values(), default=-1)
        self.sort(steps, opened=True)
        self.drawing = self.opened()

    def there(self):
        return set(self.buffer.get(np.arange(400))["index"].tolist())

    def forget_the_removed(self):
        there = self.there()
        self.young = {id_: one for id_, one in self.young.items() if id_ in there}

    @invariant()
    def those_of_this_run_within_the_lag_are_drawn_and_no_other(self):
        if not hasattr(self, "drawing"):
            return
        assert self.drawing.most(100) == len(self.young)
        if self.counts:
            assert sum(self.table.stale_by_reason.values()) == self.stale
        if self.young:
            names = [field.name for field in self.drawing.schema.fields]
            index = self.drawing.arrays(len(self.young))[names.index("index")]
            assert set(index.tolist()) == set(self.young)


PublicationsAgainstADict.TestCase.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
test_what_is_drawn_is_what_a_dict_says = PublicationsAgainstADict.TestCase


def test_steps_too_far_behind_what_is_published_are_left_out_and_counted(tmp_path):
    feeder, _ = served(tmp_path, range(10))
    try:
        with connect(feeder.address) as client:
            table = client.table("t")
            source = source_of(table, 1)
            assert drawn(source) == {8, 9}  # the newest that is stored, before any is published
            assert client.publish("policy", WEIGHTS, version=10)
            assert drawn(source) == {9}
            client.publish("critic", WEIGHTS, version=99)  # of other weights
            with table.writer() as writer:
                for version in (9, 10, 8, 3):
                    writer.append(x=1, policy_version=version)
                writer.flush()
            assert drawn(source) == {9, 10}
            later = source_of(table, 0)  # opened when it is published already
            assert drawn(later) == {10}
            assert set(table.sample(500)["policy_version"].tolist()) >= {0, 3, 9, 10}
            assert table.stats().stale == (9 + 2) + 13  # of both sources
            stale = client.status()["tables"]["t"]["stale"]
            assert stale == {"became_old": 1, "came_old": 23, "other_run": 0}
            source.close()
            assert table.stats().stale == (9 + 2) + 13  # a count never falls
            assert client.status()["tables"]["t"]["stale"] == stale
            later.close()
    finally:
        feeder.close()
