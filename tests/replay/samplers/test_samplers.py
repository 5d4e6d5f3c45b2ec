"""Each sampler against a dict of the items that are there: what it draws, in which order, with
which chances.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sampler_rig import BARELY, Rig, surprise, tally

from async_loader.replay.samplers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    Uniform,
)


def ranked(items, alpha):
    """1 / rank ** alpha, of items (priority) in the order in which they came."""
    rank = np.argsort(np.argsort(-np.array(items))) + 1.0
    return rank**-alpha


def recent(items, half_life):
    return 0.5 ** (np.arange(len(items))[::-1] / half_life)


CHANCES = {
    "uniform": (Uniform, np.ones_like, lambda items: np.linspace(0.9, 1.1, len(items))),
    "uniform without replacement": (
        lambda: Uniform(replacement=False),
        np.ones_like,
        lambda items: np.linspace(0.9, 1.1, len(items)),
    ),
    **{
        f"rank, alpha={alpha}": (
            lambda alpha=alpha: RankPrioritized(alpha, resort_every=1),
            lambda items, alpha=alpha: ranked(items, alpha),
            lambda items, alpha=alpha: ranked(items, alpha + 0.3),
        )
        for alpha in (0.0, 0.7, 1.0)
    },
    **{
        f"recency, half-life {half_life}": (
            lambda half_life=half_life: Recency(half_life),
            lambda items, half_life=half_life: recent(items, half_life),
            lambda items, half_life=half_life: recent(items, half_life * 1.25),
        )
        for half_life in (2.0, 7.5)
    },
}


@pytest.mark.parametrize("held", [60, 16])
@pytest.mark.parametrize("name", CHANCES)
def test_items_are_drawn_with_the_chances_of_their_sampler(name, held):
    make, chances, others = CHANCES[name]
    rng, rig = np.random.default_rng(0), Rig(make(), seed=1)
    came, priority = rng.permutation(64), rng.permutation(64) ** 3.0
    rig.insert(came, priority)
    gone = rng.permutation(64)[held:]
    rig.remove(gone)
    there = ~np.isin(came, gone)
    counts = tally(rig, 64, 4_000, 10)
    assert not counts[gone].any()
    expected = chances(priority[there])
    common = expected / expected.sum() * 40_000 > 20
    seen = counts[came[there]][common]
    assert surprise(seen, expected[common]) < BARELY
    assert surprise(seen, others(priority[there])[common]) > BARELY  # it would be noticed


def test_pairs_without_replacement_are_equally_likely():
    held = 6
    rig = Rig(Uniform(replacement=False), 20, seed=3)
    rig.insert(np.arange(held))
    counts = np.zeros((held, held))
    for _ in range(12 * held * held):
        counts[tuple(rig.rows(2))] += 1
    assert counts.diagonal().sum() == 0
    assert surprise(counts[~np.eye(held, dtype=bool)], np.ones(held * (held - 1))) < BARELY


@pytest.mark.parametrize("normalize", ["batch", "buffer", "none"])
def test_weights_are_those_of_the_ranks_that_were_drawn_by(normalize):
    beta, chance = 0.6, ranked(-np.arange(38.0), 0.7)
    rig = Rig(RankPrioritized(0.7, beta, normalize=normalize, resort_every=10_000), 64)
    rig.insert(np.arange(40), np.arange(40))  # never sorted: ranks are places
    rig.remove([3, 39])
    place = {int(row): i for i, row in enumerate(rig.sampler._order)}
    weight = (38 * chance / chance.sum()) ** -beta
    drawn = rig.sampler.draw(24)
    expected = weight[[place[int(row)] for row in drawn.rows]]
    base = {"batch": expected.max(), "buffer": weight.max(), "none": 1.0}[normalize]
    assert drawn.weight.dtype == np.float32
    assert drawn.weight == pytest.approx(expected / base, rel=1e-6)


@pytest.mark.parametrize(
    "kind", [Uniform, Prioritized, RankPrioritized, Recency, Fifo, Lifo, MinHeap, MaxHeap]
)
def test_equal_seeds_draw_equally(kind):
    made = [kind(5.0) if kind is Recency else kind() for _ in range(2)]
    first, second = (Rig(one, seed=5) for one in made)
    for rig in (first, second):
        rig.insert(np.arange(64), np.arange(64) % 7)
    for count in (1, 8, 300):
        assert first.rows(count) == second.rows(count)


ORDERED = {
    Fifo: lambda there: list(there),
    Lifo: lambda there: list(there)[::-1],
    MinHeap: lambda there: sorted(there, key=lambda row: there[row]),
    MaxHeap: lambda there: sorted(there, key=lambda row: (-there[row][0], there[row][1])),
}
MADE = {
    "fifo": Fifo,
    "lifo": Lifo,
    "lowest": MinHeap,
    "highest": MaxHeap,
    "uniform": Uniform,
    "uniform without replacement": lambda: Uniform(replacement=False),
    "rank": lambda: RankPrioritized(0.7, resort_every=5),
    "the newest": lambda: Recency(1e-3),
}
ROWS = 24
PRIORITIES = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1e-300, 1e100])


@settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
class SamplerAgainstADict(RuleBasedStateMachine):
    """Items in the order in which they came: row to priority and when that was set."""

    @initialize(name=st.sampled_from(list(MADE)))
    def start(self, name):
        self.rig = Rig(MADE[name](), ROWS)
        self.sampler = self.rig.sampler
        self.there: dict[int, tuple[float, int]] = {}
        self.clock, self.most = 0, None

    def note(self, given):
        """Of equal priorities the one that was set longer ago comes first."""
        known = [p for p in given.values() if p is not None]
        if known:
            self.most = max(known) if self.most is None else max(self.most, *known)
        for row, priority in given.items():
            self.clock += 1
            new = 1.0 if self.most is None else self.most
            self.there[row] = (new if priority is None else priority, self.clock)

    @rule(given=st.dictionaries(st.integers(0, ROWS - 1), st.none() | PRIORITIES, max_size=8))
    def insert(self, given):
        given = {row: p for row, p in given.items() if row not in self.there}
        self.rig.insert(list(given), [np.nan if p is None else p for p in given.values()])
        self.note(given)

    @precondition(lambda self: self.sampler.prioritized and self.there)
    @rule(pairs=st.lists(st.tuples(st.integers(0, ROWS - 1), PRIORITIES), max_size=8))
    def update(self, pairs):
        rows = sorted(self.there)
        pairs = [(rows[i % len(rows)], p) for i, p in pairs]
        self.rig.update([row for row, _ in pairs], [p for _, p in pairs])
        for row, priority in pairs:
            self.note({row: priority})

    @rule(rows=st.sets(st.integers(0, ROWS - 1), max_size=12))
    def remove(self, rows):
        rows = sorted(rows & self.there.keys())
        self.rig.remove(rows)
        for row in rows:
            del self.there[row]

    @precondition(lambda self: self.there)
    @rule(count=st.sampled_from([1, 2, 7, 30]))
    def draw(self, count):
        rows = self.rig.rows(count)
        assert set(rows) <= self.there.keys()
        assert len(rows) == (count if self.sampler.repeats else min(count, len(self.there)))
        assert self.sampler.repeats or len(set(rows)) == len(rows)
        if type(self.sampler) in ORDERED:
            assert rows == ORDERED[type(self.sampler)](self.there)[:count]
            assert self.rig.rows(count) == rows  # drawing changes nothing
        elif isinstance(self.sampler, Recency):
            assert set(rows) == {list(self.there)[-1]}
        elif isinstance(self.sampler, RankPrioritized):
            order = self.sampler._order.tolist()
            assert sorted(order) == sorted(self.there)
            places = [order.index(row) for row in rows]
            edges = np.cumsum([0.0, *ranked(-np.arange(len(order)), 0.7)])
            edges /= edges[-1]
            assert (edges[places] < (np.arange(count) + 1) / count + 1e-12).all()
            assert (edges[np.array(places) + 1] > np.arange(count) / count - 1e-12).all()


test_a_sampler_draws_what_a_dict_says = SamplerAgainstADict.TestCase
