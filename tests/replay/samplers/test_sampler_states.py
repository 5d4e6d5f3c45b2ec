"""A sampler that is restored draws what the saved one would have drawn, its state having been in a
file in between.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from sampler_rig import Rig

from async_loader.replay.samplers import (
    Balanced,
    Fifo,
    Lifo,
    Linear,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    Uniform,
)

MADE = {
    "uniform": lambda: Uniform(),
    "different": lambda: Uniform(replacement=False),
    "prioritized": lambda: Prioritized(0.123456789, Linear(0.4, 1.0, 30)),
    "independent": lambda: Prioritized(
        1.0, 0.5, 0.0, stratified=False, normalize="buffer", new_priority="max_now"
    ),
    "by given": lambda: Prioritized(0, 1, 1.23456789e-7, normalize="none", new_priority="given"),
    "rank": lambda: RankPrioritized(
        0.700000001, Linear(0.1, 0.9, 25), normalize="none", resort_every=70
    ),
    "rank by default": lambda: RankPrioritized(),
    "recency": lambda: Recency(Linear(3.3, 40.0, 25)),
    "balanced": lambda: Balanced("task"),
    "fifo": Fifo,
    "lifo": Lifo,
    "lowest": MinHeap,
    "highest": MaxHeap,
}


def filed(state):
    """What a checkpoint makes of a state."""
    return json.loads(json.dumps(state, allow_nan=False))


def churn(rigs, rng, turns):
    """The same random calls to each; what they draw has to be the same."""
    rows = rigs[0].items.rows
    for _ in range(turns):
        alive = rigs[0].items.alive
        gone = rng.permutation(np.flatnonzero(alive))[: rng.integers(0, 9)]
        new = rng.permutation(np.flatnonzero(alive == 0))[: rng.integers(0, 9)]
        priority = rng.integers(0, 4, len(new)).astype(float)  # few values: ties
        if getattr(rigs[0].sampler, "new_priority", None) != "given":
            priority[rng.random(len(new)) < 0.3] = np.nan
        for rig in rigs:
            rig.remove(gone)
            rig.insert(new, priority)
        there = np.flatnonzero(rigs[0].items.alive)
        if not len(there):
            continue
        changed, to = rng.choice(there, 6), rng.integers(0, 4, 6)
        count = int(rng.integers(1, rows))
        draws = []
        for rig in rigs:
            if rig.sampler.prioritized:
                rig.update(changed, to)
            draws.append(rig.sampler.draw(count))
        for draw in draws[1:]:
            assert draw.rows.tolist() == draws[0].rows.tolist()
            assert (draw.weight is None) == (draws[0].weight is None)
            assert draw.weight is None or draw.weight.tobytes() == draws[0].weight.tobytes()


@pytest.mark.parametrize("held", [4, 48])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_restored_sampler_that_is_told_of_the_items_goes_on_as_the_saved_one(make, held):
    rng = np.random.default_rng(held)
    rig = Rig(make(), 48, seed=2)
    rig.insert(np.arange(held), rng.integers(0, 3, held))
    for turns in (0, 1, 40):  # in the middle of a schedule, and after its end
        churn([rig], rng, turns)
        other = Rig(make(), 48, seed=3)
        other.sampler.restore(filed(rig.sampler.state()))
        rig.remove(np.flatnonzero(rig.items.alive))
        rig.items.top = 0
        rig.sampler.reset()
        priority = rng.integers(0, 3, held)
        for one in (rig, other):
            one.insert(np.arange(held), priority)
        churn([rig, other], rng, 12)
