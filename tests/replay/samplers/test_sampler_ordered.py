"""Fifo and Lifo give items in the order in which they came, wherever others are taken out."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sampler_rig import Rig

from async_loader.replay.samplers import Fifo, Lifo


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
