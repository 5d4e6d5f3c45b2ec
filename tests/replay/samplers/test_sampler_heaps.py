"""MinHeap and MaxHeap give items in the order of their priorities; of equal ones, what was set
longer ago.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampler_rig import Rig

from async_loader.replay.samplers import MaxHeap, MinHeap
from async_loader.replay.samplers.heaps import Heap

priorities = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1e-300, 1e100])


def test_the_lowest_and_the_highest_come_in_order_each_once():
    low, high = Rig(MinHeap()), Rig(MaxHeap())
    for rig in (low, high):
        rig.insert([4, 8, 2, 6], [3.0, 1.0, 2.0, 0.0])
    assert low.rows(3) == [6, 8, 2]
    assert high.rows(3) == [4, 2, 8]
    assert high.rows(99) == [4, 2, 8, 6]
    assert repr(low.sampler) == "MinHeap()"
    assert repr(high.sampler) == "MaxHeap()"
    assert (MinHeap.prioritized, MinHeap.weighted, MinHeap.repeats) == (True, False, False)


@settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
class HeapAgainstADict(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from([MinHeap, MaxHeap]))
    def start(self, kind):
        self.kind, self.rig = kind, Rig(kind(), 24)
        self.keys: dict[int, tuple[float, int]] = {}
        self.clock, self.most = 0, None

    def note(self, row, priority):
        self.clock += 1
        self.keys[row] = (priority if self.kind is MinHeap else -priority, self.clock)

    def see(self, given):
        known = [p for p in given if p is not None]
        if known:
            self.most = max(known) if self.most is None else max(self.most, *known)

    @rule(given=st.dictionaries(st.integers(0, 23), st.none() | priorities, max_size=8))
    def insert(self, given):
        given = {row: p for row, p in given.items() if row not in self.keys}
        self.see(given.values())
        self.rig.insert(list(given), [np.nan if p is None else p for p in given.values()])
        for row, priority in given.items():
            self.note(
                row, (1.0 if self.most is None else self.most) if priority is None else priority
            )

    @precondition(lambda self: self.keys)
    @rule(pairs=st.lists(st.tuples(st.integers(0, 23), priorities), max_size=8))
    def update(self, pairs):
        there = sorted(self.keys)
        pairs = [(there[i % len(there)], p) for i, p in pairs]
        self.see(p for _, p in pairs)
        self.rig.update([row for row, _ in pairs], [p for _, p in pairs])
        for row, priority in pairs:
            self.note(row, priority)

    @rule(rows=st.sets(st.integers(0, 23), max_size=6))
    def remove(self, rows):
        rows = sorted(rows & self.keys.keys())
        self.rig.remove(rows)
        for row in rows:
            del self.keys[row]

    @rule(count=st.integers(1, 30))
    def draw(self, count):
        for _ in range(2):  # drawing changes nothing
            assert self.rig.rows(count) == sorted(self.keys, key=self.keys.__getitem__)[:count]

    @invariant()
    def parents_come_before_children(self):
        if not hasattr(self, "rig"):
            return
        heap: Heap = self.rig.sampler._heap
        order = heap.order.tolist()
        assert sorted(order) == sorted(self.keys)
        for place, row in enumerate(order):
            assert heap._places[row] == place
            assert place == 0 or self.keys[order[(place - 1) // 2]] < self.keys[row]


test_heaps_hold_what_a_dict_holds = HeapAgainstADict.TestCase
