"""RankPrioritized draws by rank: 1 / rank ** alpha, ranks being places in a heap that is sorted
from time to time.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader.replay.samplers import RankPrioritized


def chances(held, alpha):
    mass = np.arange(1, held + 1) ** -alpha
    return mass / mass.sum()


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("count", [2, 32])
def test_items_are_drawn_by_rank(alpha, count):
    rig = Rig(RankPrioritized(alpha, resort_every=1), 50, seed=3)
    priority = np.random.default_rng(0).permutation(50) ** 3.0
    rig.insert(np.arange(50), priority)
    counts = tally(rig, 50, 12_000 // count, count)[np.argsort(-priority)]
    assert surprise(counts, chances(50, alpha)) < BARELY
    assert surprise(counts, chances(50, alpha + 0.3)) > BARELY  # it would be noticed


@pytest.mark.parametrize("normalize", ["batch", "buffer", "none"])
def test_weights_are_those_of_the_probabilities_that_were_drawn_by(normalize):
    beta = 0.6
    rig = Rig(RankPrioritized(0.7, beta, normalize=normalize, resort_every=10_000), 64)
    rig.insert(np.arange(40), np.arange(40))  # never sorted: ranks are places
    rig.remove([3, 39])
    place = {int(row): i for i, row in enumerate(rig.sampler._heap.order)}
    weight = (38 * chances(38, 0.7)) ** -beta
    drawn = rig.sampler.draw(24)
    expected = weight[[place[int(row)] for row in drawn.rows]]
    base = {"batch": expected.max(), "buffer": weight.max(), "none": 1.0}[normalize]
    assert drawn.weight.dtype == np.float32
    assert drawn.weight == pytest.approx(expected / base, rel=1e-6)


@settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
class RanksAgainstADict(RuleBasedStateMachine):
    @initialize(alpha=st.sampled_from([0.0, 0.7, 1.5]), resort_every=st.sampled_from([None, 1, 5]))
    def start(self, alpha, resort_every):
        self.alpha, self.resort_every = alpha, resort_every
        self.make = lambda: RankPrioritized(alpha, normalize="none", resort_every=resort_every)
        self.rig, self.keys, self.clock, self.most = Rig(self.make(), 20), {}, 0, 1.0
        self.seen = False

    def note(self, row, priority):
        self.clock += 1
        self.keys[row] = (-priority, self.clock)

    def see(self, priority):
        self.most = max(self.most, priority) if self.seen else priority
        self.seen = True

    @rule(row=st.integers(0, 19), priority=st.none() | st.sampled_from([0.0, 0.5, 1.0, 1.0, 7.0]))
    def put(self, row, priority):
        if priority is not None:
            self.see(priority)
        given = self.most if priority is None else priority
        if row not in self.keys:
            self.rig.insert([row], [np.nan if priority is None else priority])
        else:
            self.rig.update([row], [given])
            self.see(given)
        self.note(row, given)

    @rule(row=st.integers(0, 19))
    def remove(self, row):
        if self.keys.pop(row, None) is not None:
            self.rig.remove([row])

    @precondition(lambda self: self.keys)
    @rule(count=st.sampled_from([1, 4, 30]))
    def draw(self, count):
        drawn = self.rig.sampler.draw(count)
        order = self.rig.sampler._heap.order.tolist()
        assert set(drawn.rows.tolist()) <= self.keys.keys()
        ranks = np.array([order.index(row) for row in drawn.rows])
        edges = np.concatenate(([0.0], np.cumsum(chances(len(order), self.alpha))))
        assert (edges[ranks] < (np.arange(count) + 1) / count + 1e-12).all()
        assert (edges[ranks + 1] > np.arange(count) / count - 1e-12).all()

    @invariant()
    def the_heap_holds_the_items(self):
        if hasattr(self, "rig"):
            order = self.rig.sampler._heap.order.tolist()
            assert sorted(order) == sorted(self.keys)
            for place in range(1, len(order)):
                assert self.keys[order[(place - 1) // 2]] < self.keys[order[place]]


test_ranks_are_those_of_a_dict = RanksAgainstADict.TestCase
