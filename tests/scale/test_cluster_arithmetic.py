"""Shares and weights, as arithmetic."""

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
@given(totals)
def test_shares_add_up_and_an_empty_shard_gives_nothing(each):
    shares = Draws(plain_of(Prioritized())).shares([TotalsReply(items=1, mass=m) for m in each])
    assert abs(shares.sum() - 1) < 1e-9
    assert not shares[np.array(each) == 0].any()


def test_shares_follow_masses_where_there_are_any_and_items_where_all_are_zero():
    rule = Draws(plain_of(Prioritized()), 1)
    some = [TotalsReply(items=10, mass=0.0), TotalsReply(items=1, mass=2.0)]
    assert rule.shares(some).tolist() == [0, 1]
    zero = [TotalsReply(items=10, mass=0.0), TotalsReply(items=0, mass=0.0)]
    assert rule.shares(zero).tolist() == [1, 0]
    assert rule.shares([TotalsReply(items=0)]) is None
    uniform = Draws(plain_of(Uniform()), 1)
    assert uniform.shares([TotalsReply(items=0), TotalsReply(items=4)]).tolist() == [0, 1]
