"""Recency draws newer items more often, by a half-life."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader.replay.samplers import Recency
from async_loader.replay.samplers.recency import Arrivals


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


@settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
class ArrivalsAgainstAList(RuleBasedStateMachine):
    """The order, through gaps, rounds and moves: rows enough for some of each."""

    @initialize(rows=st.sampled_from([1, 3, 16]))
    def start(self, rows):
        self.rows, self.arrivals, self.order = rows, Arrivals(rows), []
        self.arrivals._slots = rows + 2  # goes round sooner
        self.arrivals._begin()

    @rule(data=st.data())
    def append(self, data):
        rows = data.draw(st.lists(st.integers(0, self.rows - 1), unique=True, max_size=8))
        self.arrivals.append(np.array(rows, np.int64))  # known ones are left out
        self.order += [row for row in rows if row not in self.order]

    @rule(data=st.data())
    def remove(self, data):
        rows = data.draw(st.lists(st.integers(0, self.rows - 1), max_size=8))
        self.arrivals.remove(np.array(rows, np.int64))
        self.order = [row for row in self.order if row not in rows]

    @rule(times=st.integers(1, 5))
    def turn_over(self, times):
        for _ in range(times * bool(self.order)):
            oldest = self.order.pop(0)
            self.arrivals.remove(np.array([oldest]))
            self.arrivals.append(np.array([oldest]))
            self.order.append(oldest)

    @rule()
    def look(self):
        assert len(self.arrivals) == len(self.order)
        assert self.arrivals.order().tolist() == self.order
        ranks = np.arange(len(self.order))
        assert self.arrivals.newest(ranks).tolist() == self.order[::-1]

    def teardown(self):
        if hasattr(self, "order"):
            self.look()


test_arrivals_are_those_of_a_list = ArrivalsAgainstAList.TestCase
