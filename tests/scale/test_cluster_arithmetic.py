"""Shares, chunks and weights, as arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import Prioritized, Uniform
from async_loader.feeder.plain_values import plain_of
from async_loader.feeder.wire import TotalsReply
from async_loader.replay.samplers import Linear
from async_loader.scale.draws import Draws, chunks_of, rows_of_each

totals = st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(lambda one: sum(one) > 1e-3)


@settings(max_examples=60)
@given(totals, st.integers(1, 300), st.booleans(), st.integers(0, 9))
def test_counts_add_up_and_an_empty_shard_gives_nothing(each, rows, stratified, seed):
    found = rows_of_each(np.random.default_rng(seed), rows, each, stratified, 3)
    assert len(found) == 3
    for counts in found:
        assert counts.sum() == rows
        assert len(counts) == len(each)
        assert not counts[np.array(each) == 0].any()


@settings(max_examples=40)
@given(totals, st.integers(1, 200))
def test_stratified_counts_are_within_two_of_the_shares(each, rows):
    (counts,) = rows_of_each(np.random.default_rng(0), rows, each, True, 1)
    assert np.all(np.abs(counts - rows * np.array(each) / sum(each)) < 2)


@given(st.integers(1, 4096), st.integers(1, 64), st.sampled_from([16, 64]))
def test_a_chunk_is_no_larger_than_a_batch_and_is_used_up_in_time(rows, shards, age):
    chunk, ahead = chunks_of(rows, shards, age)
    assert 1 <= chunk <= rows
    assert ahead >= 4
    assert chunk == 1 or chunk * ahead * shards <= age * rows / 2


def test_counts_follow_masses_where_there_are_any_and_items_where_all_are_zero():
    rule = Draws(plain_of(Prioritized()), 1)
    rng = np.random.default_rng(0)
    some = [TotalsReply(items=10, mass=0.0), TotalsReply(items=1, mass=2.0)]
    assert rule.counts(rng, 50, some).tolist() == [0, 50]
    zero = [TotalsReply(items=10, mass=0.0), TotalsReply(items=0, mass=0.0)]
    assert rule.counts(rng, 50, zero).tolist() == [50, 0]
    assert rule.counts(rng, 50, [TotalsReply(items=0)]) is None
    uniform = Draws(plain_of(Uniform()), 1)
    assert uniform.counts(rng, 9, [TotalsReply(items=0), TotalsReply(items=4)]).tolist() == [0, 9]


def test_beta_counts_the_draws_of_all_learners():
    draws = Draws(plain_of(Prioritized(1.0, Linear(0.0, 1.0, 4), normalize="none")), 2)
    whole = [TotalsReply(items=2, mass=3.0)]  # a mean of 1.5
    for beta in (0.0, 0.5, 1.0, 1.0):
        mass = np.array([1.0, 2.0], np.float32)
        draws.weigh(mass, whole)
        np.testing.assert_allclose(mass, (1.5 / np.array([1, 2])) ** beta, rtol=1e-6)


def test_weights_are_one_where_no_item_has_mass():
    mass = np.zeros(3, np.float32)
    Draws(plain_of(Prioritized()), 1).weigh(mass, [TotalsReply(items=3, mass=0.0)])
    assert mass.tolist() == [1, 1, 1]


@pytest.mark.parametrize("sampler", [None, plain_of(Uniform(replacement=False))])
def test_samplers_without_a_whole_are_refused(sampler):
    from async_loader.errors import Unsupported

    with pytest.raises(Unsupported, match="draws by Uniform"):
        Draws(sampler, 1)
