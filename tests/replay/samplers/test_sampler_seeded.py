"""Seeded: a table's sampler with numbers of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_loader import Prioritized, RankPrioritized, ReplayBuffer, Uniform
from async_loader.lifecycle import Patience
from async_loader.source import Rows

SAMPLERS = {
    "uniform": Uniform,
    "each once": lambda: Uniform(replacement=False),
    "prioritized": Prioritized,
    "rank": RankPrioritized,
}


def filled(sampler: Any, seed: int = 0) -> ReplayBuffer:
    buffer = ReplayBuffer(100, {"x": "int64"}, sampler=sampler, seed=seed)
    priority = np.arange(1.0, 61.0) if sampler.prioritized else None
    buffer.extend(x=np.arange(60), priority=priority)
    return buffer


def plans(source: Any, count: int = 4) -> list[list[int]]:
    found = []
    for _ in range(count):
        plan = source.plan(7, Patience())
        assert isinstance(plan, Rows)
        found.append(plan.index.reshape(7, -1)[:, 0].tolist())
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_decides_and_the_tables_seed_does_not(name: str) -> None:
    make = SAMPLERS[name]
    first = plans(filled(make(), 1).source(seed=5))
    assert first == plans(filled(make(), 2).source(seed=5))
    assert first != plans(filled(make(), 1).source(seed=6))
    assert first != plans(filled(make(), 1).source(seed=5, rank=1, world_size=2))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_tables_own_draws_are_not_disturbed(name: str) -> None:
    one, two = filled(SAMPLERS[name]()), filled(SAMPLERS[name]())
    source = two.source(seed=5)
    for _ in range(3):
        plans(source, 2)
        drawn = one.sample(7), two.sample(7)
        assert drawn[0]["index"].tolist() == drawn[1]["index"].tolist()
