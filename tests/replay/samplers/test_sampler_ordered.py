"""Fifo and Lifo give items in the order in which they came, wherever others are taken out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sampler_rig import Rig

from async_loader.replay.samplers import Fifo, Lifo


def test_the_oldest_and_the_newest_come_first():
    fifo, lifo = Rig(Fifo()), Rig(Lifo())
    for rig in (fifo, lifo):
        rig.insert([5, 3, 9])
        rig.insert([1])
        rig.remove([3])
        rig.insert([3])
    assert fifo.rows(3) == [5, 9, 1]
    assert lifo.rows(3) == [3, 1, 9]
    assert fifo.rows(9) == [5, 9, 1, 3]
    assert repr(fifo.sampler) == "Fifo()"
    assert repr(lifo.sampler) == "Lifo()"
    assert not any(
        getattr(kind, what)
        for kind in (Fifo, Lifo)
        for what in ("repeats", "weighted", "prioritized")
    )


@settings(
    max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
class OrderAgainstAList(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from([Fifo, Lifo]))
    def start(self, kind):
        self.kind, self.rig, self.order = kind, Rig(kind(), 16), []

    @rule(rows=st.lists(st.integers(0, 15), unique=True, max_size=8))
    def insert(self, rows):
        rows = [row for row in rows if row not in self.order]
        self.rig.insert(rows)
        self.order += rows

    @rule(rows=st.lists(st.integers(0, 15), unique=True, max_size=6))
    def remove(self, rows):
        rows = [row for row in rows if row in self.order]
        self.rig.remove(rows)
        self.order = [row for row in self.order if row not in rows]

    @rule(count=st.integers(1, 20))
    def draw(self, count):
        for _ in range(2):  # drawing changes nothing
            assert (
                self.rig.rows(count)
                == (self.order if self.kind is Fifo else self.order[::-1])[:count]
            )


test_order_is_that_of_a_list = OrderAgainstAList.TestCase


@pytest.mark.parametrize("kind", [Fifo, Lifo])
def test_a_table_that_turns_over_many_times_keeps_its_order(kind):
    rig = Rig(kind(), 8)
    rig.insert(range(8))
    for turn in range(100):
        row = turn % 8
        assert (rig.rows(1) == [row]) == (kind is Fifo)
        rig.remove([row])
        rig.insert([row])
    assert sorted(rig.rows(8)) == list(range(8))
