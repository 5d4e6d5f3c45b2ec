"""Uniform draws every item as often as every other, whatever comes and goes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader.replay.samplers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
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
def test_equal_seeds_draw_equally(kind):
    first, second = Rig(kind(), seed=5), Rig(kind(), seed=5)
    for rig in (first, second):
        rig.insert(np.arange(64), np.arange(64) % 7)
    for count in (1, 8, 300):
        assert first.rows(count) == second.rows(count)
