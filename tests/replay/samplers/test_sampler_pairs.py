"""Any sampler with any remover, through a ReplayBuffer: what is drawn is there, what makes room is
the right item.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampler_rig import sums_are_exact

from async_loader import ReplayBuffer
from async_loader.errors import ConfigError
from async_loader.replay.samplers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Uniform,
)
from tests.table_parts import debug_state

SAMPLERS = [Uniform, Prioritized, RankPrioritized, Fifo, Lifo, MinHeap, MaxHeap]
REMOVERS = [Fifo, Lifo, MinHeap, MaxHeap]
PRIORITIES = [0.0, 0.5, 1.0, 1.0, 2.0, 1e100]


class Model:
    """A table as a dict: id to (priority, when it was set), and how often each was drawn."""

    def __init__(self, capacity, remover, most):
        self.capacity, self.remover, self.most = capacity, remover, most
        self.there: dict[int, tuple[float, int]] = {}
        self.times: dict[int, int] = {}
        self.clock, self.largest = 0, None

    def note(self, id_, priority):
        if priority is not None:
            self.largest = priority if self.largest is None else max(self.largest, priority)
        self.clock += 1
        self.there[id_] = (self.new() if priority is None else priority, self.clock)

    def new(self):
        return 1.0 if self.largest is None else self.largest

    def victims(self, newest):
        """What is no more when one comes in."""
        if self.remover is Fifo:  # rows in order, whether or not they still hold an item
            return [id_ for id_ in self.there if id_ <= newest - self.capacity]
        if len(self.there) < self.capacity:
            return []
        if self.remover is Lifo:
            return [max(self.there)]
        sign = 1 if self.remover is MinHeap else -1
        return [min(self.there, key=lambda id_: (sign * self.there[id_][0], self.there[id_][1]))]

    def add(self, id_, priority):
        for victim in self.victims(id_):
            del self.there[victim]
        self.note(id_, priority)
        self.times[id_] = 0

    def drawn(self, ids):
        for id_ in ids:
            self.times[id_] += 1
        for id_ in set(ids):
            assert not self.most or self.times[id_] <= self.most
            if self.times[id_] == self.most:
                del self.there[id_]

    def drawable(self, repeats):
        if not self.there:
            return 0
        if not repeats:
            return len(self.there)
        return sum(self.most - self.times[id_] for id_ in self.there) if self.most else 1_000


class Run:
    """The same random calls to a buffer and to the model."""

    def __init__(self, sampler, remover, most, seed):
        self.rng = np.random.default_rng(seed)
        self.sampler, self.capacity = sampler(), 12
        self.prioritized = sampler.prioritized or remover.prioritized
        schema = {"obs": ((), "int64")}
        self.buffer = ReplayBuffer(
            self.capacity,
            schema,
            sampler=self.sampler,
            remover=remover(),
            max_times_sampled=most,
            seed=seed,
        )
        self.model = Model(self.capacity, remover, most)
        self.obs: dict[int, int] = {}
        rows = debug_state(self.buffer).state.table.storage.layout.rows
        many = rows - 20  # a table has rows to spare: they are taken again only when all have been
        for id_ in self.buffer.extend(obs=np.arange(many)).tolist():
            self.obs[id_] = id_
            self.model.add(id_, None)

    def priorities(self, count):
        return [PRIORITIES[i] for i in self.rng.integers(0, len(PRIORITIES), count)]

    def add(self):
        given = self.prioritized and self.rng.random() < 0.6
        priority = self.priorities(1)[0] if given else None
        id_ = self.buffer.add(
            obs=np.int64(self.model.clock), **({"priority": priority} if given else {})
        )
        self.obs[id_] = self.model.clock
        self.model.add(id_, priority)

    def sample(self):
        most = self.model.drawable(self.sampler.repeats)
        count = int(self.rng.integers(1, 7))
        if count > most:
            with pytest.raises(ConfigError):
                self.buffer.sample(count)
            return
        batch = self.buffer.sample(count)
        ids = batch["index"].tolist()
        assert len(ids) == count
        assert set(ids) <= self.model.there.keys()
        assert batch["obs"].tolist() == [self.obs[id_] for id_ in ids]
        assert self.sampler.repeats or len(set(ids)) == count
        assert not self.sampler.weighted or (
            np.isfinite(batch["weight"]).all() and (batch["weight"] > 0).all()
        )
        if type(self.sampler) in (Fifo, Lifo, MinHeap, MaxHeap):
            assert ids == self.in_order()[:count]
        self.model.drawn(ids)

    def in_order(self):
        there, kind = self.model.there, type(self.sampler)
        if not self.sampler.prioritized:
            return sorted(there, reverse=kind is Lifo)
        sign = 1 if kind is MinHeap else -1
        return sorted(there, key=lambda id_: (sign * there[id_][0], there[id_][1]))

    def prioritize(self):
        if not self.prioritized or not self.model.times:
            return
        rows = debug_state(self.buffer).state.table.storage.layout.rows
        # had the rows, if taken in order
        before = [id_ - rows for id_ in self.model.there if id_ >= rows] or [0]
        ids = [
            *self.rng.choice(before, 2).tolist(),
            *self.rng.choice(list(self.model.times)[-24:], 3).tolist(),
        ]
        priorities = self.priorities(5)
        self.buffer.update_priorities(np.array(ids), np.array(priorities))
        for id_, priority in zip(ids, priorities, strict=True):
            if id_ in self.model.there:
                self.model.note(id_, priority)

    def delete(self):
        if self.model.times:
            ids = self.rng.choice(list(self.model.times)[-24:], 2)
            self.buffer.delete(ids)
            for id_ in ids.tolist():
                self.model.there.pop(id_, None)

    def check(self):
        table = debug_state(self.buffer).state.table
        assert sorted(table.ids[table.items.alive != 0].tolist()) == sorted(self.model.there)
        assert len(self.buffer) == table.items.count == len(self.model.there) <= self.capacity
        if isinstance(self.sampler, Prioritized):
            sums_are_exact(self.sampler._masses)
            rows = np.flatnonzero(table.items.alive)
            priority = np.array([self.model.there[id_][0] for id_ in table.ids[rows].tolist()])
            assert self.sampler._masses.leaves[rows] == pytest.approx((priority + 1e-6) ** 0.6)
            assert not self.sampler._masses.leaves[np.flatnonzero(table.items.alive == 0)].any()


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("remover", REMOVERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_any_sampler_goes_with_any_remover(sampler, remover, most):
    run = Run(sampler, remover, most, seed=SAMPLERS.index(sampler) + 10 * REMOVERS.index(remover))
    calls = [run.add, run.sample, run.prioritize, run.delete]
    with run.buffer:
        for _ in range(250):
            calls[run.rng.choice(4, p=[0.6, 0.2, 0.15, 0.05])]()
            run.check()
        table = debug_state(run.buffer).state.table
        assert max(run.model.times) > table.storage.layout.rows + 20, "no row was taken again"
