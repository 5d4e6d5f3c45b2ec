"""Recency draws newer items more often, by a half-life."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader import AsyncDataLoader, ReplayBuffer, connect
from async_loader.errors import ConfigError
from async_loader.replay.samplers import Items, Linear, MaxHeap, Recency


def chances(half_life, newest_first):
    """What each row is drawn with, from the newest item on."""
    made = np.zeros(64)
    made[newest_first] = 0.5 ** (np.arange(len(newest_first)) / half_life)
    return made


@pytest.mark.parametrize("half_life", [2.0, 7.5, 40.0, 1e9])
def test_an_item_is_drawn_half_as_often_as_one_newer_by_the_half_life(half_life):
    rig = Rig(Recency(half_life), seed=1)
    order = np.random.default_rng(0).permutation(64)[:20]
    rig.insert(order)
    counts = tally(rig, 64, 300, 400)
    expected = chances(half_life, order[::-1])
    common = expected > 2e-3
    assert surprise(counts[common], expected[common]) < BARELY
    assert counts[common].sum() > 100_000
    assert counts[expected == 0].sum() == 0


def test_ages_count_the_items_that_are_there():
    rig = Rig(Recency(3.0), seed=2)
    rig.insert(np.arange(64))
    rig.remove(np.arange(20, 64, 2))
    rig.remove([63, 61, 59])
    rig.insert([40])
    newest = [40, *(row for row in range(57, 19, -1) if row % 2), *range(19, -1, -1)]
    counts = tally(rig, 64, 300, 400)
    expected = chances(3.0, newest)
    common = expected > 2e-3
    assert surprise(counts[common], expected[common]) < BARELY


def test_the_half_life_moves_with_the_draws():
    rig = Rig(Recency(Linear(0.01, 1e12, draws=1)), seed=0)
    rig.insert(np.arange(64))
    assert set(rig.rows(50)) == {63}
    assert len(set(rig.rows(500))) > 55


def test_a_very_short_half_life_draws_the_newest_alone():
    rig = Rig(Recency(1e-300), seed=0)
    rig.insert(np.arange(64))
    assert set(rig.rows(1000)) == {63}


@settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
class ArrivalsAgainstAList(RuleBasedStateMachine):
    """The order, through gaps and moves: rows enough for some of each."""

    @initialize(rows=st.sampled_from([1, 3, 16]))
    def start(self, rows):
        self.rows, self.order, self.sampler = rows, [], Recency(3.0)
        self.sampler.bind(Items(rows), np.random.SeedSequence(0))

    @rule(data=st.data())
    def append(self, data):
        rows = data.draw(st.lists(st.integers(0, self.rows - 1), unique=True, max_size=8))
        self.sampler.insert(np.array(rows, np.int64), np.empty(0))  # known ones are left out
        self.order += [row for row in rows if row not in self.order]

    @rule(data=st.data())
    def remove(self, data):
        rows = data.draw(st.lists(st.integers(0, self.rows - 1), max_size=8))
        self.sampler.remove(np.array(rows, np.int64))
        self.order = [row for row in self.order if row not in rows]

    @rule(times=st.integers(1, 5))
    def turn_over(self, times):
        for _ in range(times * bool(self.order)):
            oldest = self.order.pop(0)
            self.sampler.remove(np.array([oldest]))
            self.sampler.insert(np.array([oldest]), np.empty(0))
            self.order.append(oldest)

    @rule()
    def look(self):
        assert self.sampler.order().tolist() == self.order
        if self.order:
            self.sampler._ages = lambda count, _: np.arange(count)
            assert self.sampler.draw(len(self.order)).rows.tolist() == self.order[::-1]

    def teardown(self):
        if hasattr(self, "order"):
            self.look()


test_arrivals_are_those_of_a_list = ArrivalsAgainstAList.TestCase


@pytest.mark.parametrize("remover", [None, MaxHeap])
def test_a_table_that_turns_over_draws_its_newest(remover):
    settings = {} if remover is None else {"remover": remover()}
    buffer = ReplayBuffer(50, {"x": "int64"}, sampler=Recency(4), seed=0, **settings)
    for first in range(0, 600, 7):
        buffer.extend(x=np.arange(first, first + 7))
        drawn = buffer.sample(200)["x"]
        there = np.sort(buffer.get(np.arange(first + 7))["x"])[::-1]
        assert set(drawn.tolist()) <= set(there.tolist())
        # of the newest four come half, give or take five standard deviations
        newest = np.isin(drawn, there[:4]).sum()
        assert 60 < newest < (140 if len(there) > 12 else 201)


def test_a_save_goes_on_with_the_same_draws(tmp_path):
    buffer = ReplayBuffer(50, {"x": "int64"}, sampler=Recency(Linear(3, 9, draws=5)), seed=0)
    buffer.extend(x=np.arange(120))
    buffer.delete(np.arange(100, 110))
    buffer.sample(20)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    assert repr(loaded.stats()) == repr(buffer.stats())
    for table in (buffer, loaded):
        table.extend(x=np.arange(200, 205))
    for _ in range(10):
        assert loaded.sample(20)["index"].tolist() == buffer.sample(20)["index"].tolist()


def test_a_source_has_it_beside_the_sampler_of_its_table():
    buffer = ReplayBuffer(1_000, {"x": "int64"}, seed=0)
    buffer.extend(x=np.arange(1_000))
    sources = [buffer.source(sampler=Recency(5), seed=3) for _ in range(2)]
    draws = [source.draw_now(64).batch["x"].tolist() for source in sources]
    assert draws[0] == draws[1]
    assert min(draws[0]) > 900
    assert buffer.sample(64)["x"].min() < 500


def test_a_feeder_makes_it_for_a_table_and_for_a_source():
    # With a half-life of 5 an item as old as the hundredth would be among 64 once in 14,000 runs.
    tables = {"one": {"capacity": 1_000, "schema": {"x": "int64"}, "sampler": Recency(2)}}
    with connect("embedded", tables=tables) as client:
        table = client.table("one")
        with table.writer() as writer:
            writer.extend(x=np.arange(1_000))
        assert table.sample(64)["x"].min() > 900
        source = table.source(sampler=Recency(Linear(1e9, 1e9, draws=1)))
        with AsyncDataLoader(source, 64, batch_format="numpy") as loader:
            assert next(loader)["x"].min() < 500


@pytest.mark.parametrize(
    "half_life", [0, -1.0, float("nan"), float("inf"), "5", True, Linear(0, 5, 9)]
)
def test_a_half_life_is_a_number_above_0(half_life):
    with pytest.raises(ConfigError, match="half_life"):
        Recency(half_life)


def test_its_settings_show_and_it_belongs_to_one_table():
    sampler = Recency(100)
    assert repr(sampler) == "Recency(half_life=100.0)"
    assert sampler.repeats
    assert not sampler.weighted
    assert not sampler.prioritized
    ReplayBuffer(10, {"x": "int64"}, sampler=sampler)
    with pytest.raises(ConfigError, match="another table"):
        ReplayBuffer(10, {"x": "int64"}, sampler=sampler)
    other = {"decay": 0.99}
    with pytest.raises(TypeError, match="say half_life"):
        Recency(**other)
