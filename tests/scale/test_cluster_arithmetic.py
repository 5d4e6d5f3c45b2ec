"""Shares, chunks and weights, as arithmetic."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import Prioritized, Uniform
from async_loader.feeder.plain_values import plain_of
from async_loader.feeder.wire import TotalsReply
from async_loader.scale.draws import Draws

totals = st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(lambda one: sum(one) > 1e-3)


@settings(max_examples=60)
@given(totals, st.integers(1, 300), st.integers(0, 9))
def test_counts_add_up_and_an_empty_shard_gives_nothing(each, rows, seed):
    rule, rng = Draws(plain_of(Prioritized())), np.random.default_rng(seed)
    for _ in range(3):
        counts = rule.counts(rng, rows, [TotalsReply(items=1, mass=one) for one in each])
        assert counts.sum() == rows
        assert len(counts) == len(each)
        assert not counts[np.array(each) == 0].any()


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
