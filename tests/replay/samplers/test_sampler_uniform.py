"""Uniform draws every item as often as every other, whatever comes and goes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader.errors import ConfigError
from async_loader.replay.samplers import (
    Fifo,
    Items,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Sampler,
    Uniform,
)

ALL = [Uniform, Prioritized, RankPrioritized, Fifo, Lifo, MinHeap, MaxHeap]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    "alive", [40, 15, 10, 3], ids=["full", "above a quarter", "a quarter", "few"]
)
def test_every_item_is_as_likely(replacement, alive):
    rig = Rig(Uniform(replacement), 40, seed=alive)
    rig.insert(np.arange(40))
    gone = np.random.default_rng(2).permutation(40)[alive:]
    rig.remove(gone)
    counts = tally(rig, 40, 3_000, 2)
    assert counts[gone].sum() == 0
    there = np.setdiff1d(np.arange(40), gone)
    assert surprise(counts[there], np.ones(alive)) < BARELY
    if alive > 3:
        # it would be noticed
        assert surprise(counts[there], np.linspace(0.85, 1.15, alive)) > BARELY


@pytest.mark.parametrize("held", [4, 6, 20], ids=["most", "half", "some"])
def test_pairs_without_replacement_are_equally_likely(held):
    rig = Rig(Uniform(replacement=False), 20, seed=3)
    rig.insert(np.arange(held))
    counts = np.zeros((held, held))
    for _ in range(12 * held * held):
        counts[tuple(rig.rows(2))] += 1
    assert counts.diagonal().sum() == 0
    assert surprise(counts[~np.eye(held, dtype=bool)], np.ones(held * (held - 1))) < BARELY


def test_a_list_is_let_go_of_when_most_rows_hold_items():
    rig = Rig(Uniform(), 64)
    rig.insert(np.arange(64))
    rig.remove(np.arange(5, 64))
    rig.rows(3)
    assert rig.sampler._list is not None
    assert rig.draws_into() is None
    rig.insert(np.arange(5, 40))
    assert rig.sampler._list is None
    assert rig.draws_into() is not None


def test_items_that_came_after_the_list_was_made_are_as_likely():
    rig = Rig(Uniform(), 400, seed=4)
    rig.insert(np.arange(400))
    rig.remove(np.arange(20, 400))
    rig.rows(64)
    rig.remove(np.arange(5))
    rig.insert([100, 200, 300, 2])
    rig.remove([200])
    rig.insert([200])
    there = [*range(5, 20), 2, 100, 200, 300]
    counts = tally(rig, 400, 400, 64)
    assert set(np.flatnonzero(counts)) == set(there)
    assert surprise(counts[there], np.ones(len(there))) < BARELY


def test_without_replacement_a_draw_of_more_than_there_is_returns_fewer():
    rig = Rig(Uniform(replacement=False))
    rig.insert([3, 9, 12])
    assert sorted(rig.rows(5)) == [3, 9, 12]
    assert sorted(rig.rows(3)) == [3, 9, 12]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("held", [3, 500, 1_024, 2_048])
def test_few_items_among_many_rows_cost_nothing_per_row(monkeypatch, replacement, held):
    """Counted, not timed: how often all rows are looked through, also where the count moves about a
    bound.
    """
    looked: list[int] = []
    real = np.flatnonzero
    rig = Rig(Uniform(replacement), 4_096)
    rig.insert(np.arange(4_096))
    rig.remove(np.arange(held, 4_096))
    monkeypatch.setattr(np, "flatnonzero", lambda a: (looked.append(len(a)), real(a))[1])
    there, rng = list(range(held)), np.random.default_rng(0)
    for row in rng.permutation(np.arange(held, 4_096))[:500].tolist():
        rig.remove([there.pop(0)])
        rig.rows(8)
        rig.insert([row])
        there.append(row)
        assert set(rig.rows(8)) <= set(there)
    assert len(looked) <= 2


@settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
class UniformAgainstASet(RuleBasedStateMachine):
    @initialize(
        replacement=st.booleans(), seed=st.integers(0, 9), start=st.sampled_from([0, 5, 48])
    )
    def start(self, replacement, seed, start):
        self.replacement = replacement
        self.rig, self.there = Rig(Uniform(replacement), 48, seed), set()
        self.add(set(range(start)))

    def add(self, rows):
        rows = sorted(rows - self.there)
        self.rig.insert(rows)
        self.there |= set(rows)

    @rule(rows=st.sets(st.integers(0, 47), max_size=6))
    def insert(self, rows):
        self.add(rows)

    @rule(keep=st.sets(st.integers(0, 47), max_size=12))
    def remove(self, keep):
        self.rig.remove(sorted(self.there - keep))
        self.there &= keep

    @rule(rows=st.sets(st.integers(0, 47), max_size=4))
    def remove_some(self, rows):
        self.rig.remove(sorted(self.there & rows))
        self.there -= rows

    @precondition(lambda self: self.there)
    @rule(count=st.sampled_from([1, 2, 7, 60]))
    def draw(self, count):
        rows = self.rig.rows(count)
        assert set(rows) <= self.there
        assert len(rows) == (count if self.replacement else min(count, len(self.there)))
        assert self.replacement or len(set(rows)) == len(rows)

    @invariant()
    def a_list_names_each_row_once_and_every_item(self):
        listed = getattr(getattr(self, "rig", None) and self.rig.sampler, "_list", None)
        if listed is not None:
            rows = listed.rows[: listed.count].tolist()
            assert len(set(rows)) == len(rows)
            assert self.there <= set(rows)


test_uniform_draws_what_a_set_holds = UniformAgainstASet.TestCase


@pytest.mark.parametrize("kind", ALL)
def test_a_sampler_belongs_to_one_table(kind):
    sampler = kind()
    assert isinstance(sampler, Sampler)
    sampler.bind(Items(8), np.random.SeedSequence(0))
    with pytest.raises(ConfigError, match=rf"{kind.__name__}.*another table"):
        sampler.bind(Items(8), np.random.SeedSequence(0))


@pytest.mark.parametrize("kind", ALL)
def test_equal_seeds_draw_equally(kind):
    first, second = Rig(kind(), seed=5), Rig(kind(), seed=5)
    for rig in (first, second):
        rig.insert(np.arange(64), np.arange(64) % 7)
    for count in (1, 8, 300):
        assert first.rows(count) == second.rows(count)


@pytest.mark.parametrize("kind", [Uniform, Prioritized, RankPrioritized])
def test_different_seeds_draw_differently(kind):
    first, second = Rig(kind(), seed=5), Rig(kind(), seed=6)
    for rig in (first, second):
        rig.insert(np.arange(64))
    assert first.rows(32) != second.rows(32)


@pytest.mark.parametrize("kind", ALL)
def test_one_row_is_enough(kind):
    rig = Rig(kind(), rows=1)
    for _ in range(3):
        rig.insert([0], [2.0])
        assert set(rig.rows(3)) == {0}
        rig.remove([0])


def test_settings_show_and_nonsense_is_refused():
    assert repr(Uniform()) == "Uniform()"
    assert repr(Uniform(False)) == "Uniform(replacement=False)"
    assert Uniform().repeats
    assert not Uniform(False).repeats
    with pytest.raises(ConfigError, match="replacement='no'"):
        Uniform("no")  # type: ignore[arg-type]
