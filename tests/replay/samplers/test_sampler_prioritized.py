"""Prioritized draws in proportion to (p + eps) ** alpha, and corrects by the weights of the
paper.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampler_rig import BARELY, Rig, minima_are_exact, sums_are_exact, surprise, tally

from async_loader import Linear, Prioritized, RankPrioritized
from async_loader.errors import ConfigError


def masses(priority, alpha, eps):
    shifted = np.asarray(priority, np.float64) + eps
    return np.where(shifted > 0, shifted**alpha, 0.0)


def closed_form(mass, rows, beta, normalize, held):
    """(N P) ** -beta, normalised."""
    mass = np.asarray(mass)
    base = {"batch": mass[rows].min(), "buffer": mass[mass > 0].min(), "none": mass.sum() / held}[
        normalize
    ]
    # (N P) ** -beta by the largest, in which N and the sum fall out: nothing overflows
    return (base / mass[rows]) ** beta


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("count", [2, 32])
def test_items_are_drawn_in_proportion(stratified, alpha, count):
    priority = np.random.default_rng(1).random(50) * 3 + 0.1
    rig = Rig(Prioritized(alpha, stratified=stratified), 50, seed=2)
    rig.insert(np.arange(50), priority)
    counts = tally(rig, 50, 16_000 // count, count)
    chances = masses(priority, alpha, 1e-6)
    assert surprise(counts, chances) < BARELY
    assert surprise(counts, masses(priority, alpha + 0.3, 1e-6)) > BARELY  # it would be noticed


@pytest.mark.parametrize(
    ("normalize", "beta"),
    [("batch", 0.4), ("buffer", 0.4), ("none", 0.4), ("none", 0.0), ("buffer", 1.0)],
)
def test_weights_are_those_of_the_closed_form(normalize, beta):
    priority = np.random.default_rng(1).random(40) * 5
    priority[::7] = 0
    rig = Rig(Prioritized(0.7, beta, eps=0.0, normalize=normalize), 64)
    rig.insert(np.arange(40), priority)
    rig.remove([3, 9])
    mass = masses(priority, 0.7, 0.0)
    mass[[3, 9]] = 0
    drawn = rig.sampler.draw(16)
    assert drawn.weight.dtype == np.float32
    paper = (38 * mass[mass > 0] / mass.sum()) ** -beta
    mine = (38 * mass[drawn.rows] / mass.sum()) ** -beta
    largest = {"batch": mine.max(), "buffer": paper.max(), "none": 1.0}[normalize]
    assert drawn.weight == pytest.approx(mine / largest, rel=1e-6)
    assert drawn.weight == pytest.approx(
        closed_form(mass, drawn.rows, beta, normalize, 38), rel=1e-6
    )


def test_beta_is_annealed_by_draws_whatever_their_size():
    rig = Rig(Prioritized(1.0, Linear(0.0, 1.0, 4), eps=0.0, normalize="none"), 2)
    rig.insert([0, 1], [1.0, 3.0])
    for beta, count in zip([0.0, 0.25, 0.5, 0.75, 1.0, 1.0], [1, 50, 3, 9, 20, 7], strict=True):
        drawn = rig.sampler.draw(count)
        assert drawn.weight == pytest.approx(np.array([0.5, 1.5])[drawn.rows] ** -beta, rel=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("stratified", [True, False])
def test_a_priority_of_zero_is_never_drawn(alpha, stratified):
    rig = Rig(Prioritized(alpha, eps=0.0, stratified=stratified), 128)
    rig.insert(np.arange(100), np.arange(100) % 3)
    assert not tally(rig, 128, 300, 64)[np.r_[0:100:3, 100:128]].any()


def test_of_no_mass_at_all_every_item_is_as_likely_with_weight_one():
    rig = Rig(Prioritized(eps=0.0), 40, seed=1)
    rig.insert(np.arange(30), 0.0)
    rig.remove(np.arange(5))
    assert (rig.sampler.draw(9).weight == 1).all()
    counts = tally(rig, 40, 800, 16)
    assert not counts[np.r_[0:5, 30:40]].any()
    assert surprise(counts[5:30], np.ones(25)) < BARELY
    rig.update([7], [2.0])
    assert set(rig.rows(50)) == {7}


@pytest.mark.parametrize("stratified", [True, False])
def test_huge_and_tiny_priorities_live_together(stratified):
    rig = Rig(Prioritized(1.0, 1.0, eps=0.0, stratified=stratified, normalize="buffer"), 8)
    rig.insert(np.arange(6), [1e-300, 1e100, 1e-300, 0.0, 1.0, 1e100])
    drawn = rig.sampler.draw(256)
    assert set(drawn.rows.tolist()) == {1, 5}
    assert np.isfinite(drawn.weight).all()
    rig.remove([1, 5])
    assert set(rig.rows(256)) == {4}
    rig.remove([4])
    drawn = rig.sampler.draw(256)
    assert set(drawn.rows.tolist()) == {0, 2}
    assert (drawn.weight == 1).all()


def test_settings_of_nonsense_are_refused_by_name():
    for arguments in (
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"alpha": "0.6"},
        {"beta": -1.0},
        {"beta": float("inf")},
        {"beta": 2},
        {"beta": Linear(0.4, 1.5, 100)},
        {"beta": Linear(1.5, 0.4, 100)},
        {"beta": None},
        {"eps": -1e-9},
        {"eps": float("inf")},
        {"eps": 1e300},
        {"stratified": 2},
        {"normalize": "max"},
        {"new_priority": "one"},
    ):
        with pytest.raises(ConfigError, match=rf"{next(iter(arguments))}(=| is )"):
            Prioritized(**arguments)
        if arguments.keys() == {"beta"}:
            with pytest.raises(ConfigError, match=r"beta=.* 0 "):
                RankPrioritized(**arguments)


priorities = st.sampled_from([0.0, 0.0, 1e-300, 0.1, 1.0, 2.0, 1e3, 1e100])


@settings(
    max_examples=70, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
class PrioritizedAgainstADict(RuleBasedStateMachine):
    @initialize(
        alpha=st.sampled_from([0.0, 0.6, 1.0]),
        eps=st.sampled_from([0.0, 1e-6]),
        stratified=st.booleans(),
        normalize=st.sampled_from(["batch", "buffer", "none"]),
        new=st.sampled_from(["max_ever", "max_now"]),
        rows=st.sampled_from([5, 16, 21]),
    )
    def start(self, alpha, eps, stratified, normalize, new, rows):
        self.alpha, self.eps, self.normalize, self.new = alpha, eps, normalize, new
        self.make = lambda: Prioritized(
            alpha,
            Linear(0.2, 0.9, 10),
            eps,
            stratified=stratified,
            normalize=normalize,
            new_priority=new,
        )
        self.stratified, self.rows, self.draws, self.most = stratified, rows, 0, None
        self.rig = Rig(self.make(), rows)
        self.mass: dict[int, float] = {}

    def see(self, given):
        self.most = max(
            [*([] if self.most is None else [self.most]), *(p for p in given if p is not None)],
            default=None,
        )

    def mass_of(self, priority):
        return float(masses(priority, self.alpha, self.eps))

    @rule(given=st.dictionaries(st.integers(0, 20), st.none() | priorities, max_size=6))
    def insert(self, given):
        given = {row: p for row, p in given.items() if row < self.rows and row not in self.mass}
        self.see(given.values())
        now = max(self.mass.values(), default=0.0) or 1.0
        new = (
            self.mass_of(1.0 if self.most is None else self.most) if self.new == "max_ever" else now
        )
        self.rig.insert(list(given), [np.nan if p is None else p for p in given.values()])
        self.mass |= {row: new if p is None else self.mass_of(p) for row, p in given.items()}

    @precondition(lambda self: self.mass)
    @rule(pairs=st.lists(st.tuples(st.integers(0, 20), priorities), max_size=8))
    def update(self, pairs):
        there = sorted(self.mass)
        pairs = [(there[i % len(there)], p) for i, p in pairs]
        self.see(p for _, p in pairs)
        self.rig.update([row for row, _ in pairs], [p for _, p in pairs])
        self.mass |= {row: self.mass_of(p) for row, p in pairs}

    @rule(rows=st.sets(st.integers(0, 20), max_size=6))
    def remove(self, rows):
        rows = sorted(rows & self.mass.keys())
        self.rig.remove(rows)
        for row in rows:
            del self.mass[row]

    @precondition(lambda self: self.mass)
    @rule(count=st.sampled_from([1, 3, 16]))
    def draw(self, count):
        drawn = self.rig.sampler.draw(count)
        beta = 0.2 + 0.7 * min(1.0, self.draws / 10)
        self.draws += 1
        leaves = np.zeros(self.rows)
        leaves[list(self.mass)] = list(self.mass.values())
        assert len(drawn.rows) == len(drawn.weight) == count
        assert set(drawn.rows.tolist()) <= self.mass.keys()
        if not leaves.any():
            assert (drawn.weight == 1).all()
            return
        assert (leaves[drawn.rows] > 0).all()
        if not self.stratified:
            assert np.isfinite(drawn.weight).all()
        else:
            edges = np.concatenate(([0.0], np.cumsum(leaves))) / leaves.sum()
            assert (edges[drawn.rows] < (np.arange(count) + 1) / count + 1e-9).all()
            assert (edges[drawn.rows + 1] > np.arange(count) / count - 1e-9).all()
        expected = closed_form(leaves, drawn.rows, beta, self.normalize, len(self.mass))
        assert drawn.weight == pytest.approx(expected, rel=1e-5, abs=1e-37)

    @invariant()
    def trees_are_those_of_the_masses(self):
        if not hasattr(self, "rig"):
            return
        sampler = self.rig.sampler
        expected = np.zeros_like(sampler._masses.leaves)
        expected[list(self.mass)] = list(self.mass.values())
        assert sampler._masses.leaves == pytest.approx(expected, rel=1e-12, abs=0)
        sums_are_exact(sampler._masses)
        for tree in (sampler._least, sampler._most):
            if tree is not None:
                minima_are_exact(tree)


test_prioritized_draws_what_a_dict_holds = PrioritizedAgainstADict.TestCase
