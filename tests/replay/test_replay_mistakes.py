"""What a new user gets wrong is said at once, in words that name it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_loader import MinSize, Prioritized, ReplayBuffer
from async_loader.errors import ConfigError, SchemaError
from async_loader.source import Applied

STEP = {"obs": "float32", "reward": "float32"}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"obs": 1.0}, "lacks 'reward'"),
        ({"obs": 1.0, "reward": 1.0, "extra": 2}, "has also 'extra'"),
        ({}, "lacks 'obs', 'reward'"),
    ],
)
def test_a_field_that_is_missing_or_too_many_is_named(step: dict[str, Any], said: str):
    with pytest.raises(SchemaError, match=said):
        ReplayBuffer(10, STEP).add(step)


def test_a_limiter_that_is_none_is_refused_and_the_old_one_stays():
    limiter = MinSize(3)
    buffer = ReplayBuffer(10, STEP, limiter=limiter)
    with pytest.raises(ConfigError, match="limiter=8"):
        buffer.limiter = 8  # type: ignore[assignment]
    assert buffer.limiter is limiter


def test_a_limiter_that_waits_for_more_than_the_capacity_is_refused():
    with pytest.raises(ConfigError, match="keeps 10 steps"):
        ReplayBuffer(10, STEP, limiter=MinSize(11))
    buffer = ReplayBuffer(10, STEP, limiter=MinSize(10))
    with pytest.raises(ConfigError, match="keeps 10 steps"):
        buffer.limiter = MinSize(11)


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
def test_a_seed_that_is_none_is_refused(seed: Any):
    with pytest.raises(ConfigError, match="seed="):
        ReplayBuffer(10, seed=seed)


def test_priorities_of_an_empty_prioritized_table_are_stale_before_and_after_its_schema_is_known():
    for schema in (None, STEP):
        assert ReplayBuffer(10, schema, sampler=Prioritized()).update_priorities([0], [1.0]) == Applied(0, 1)


def test_a_prioritized_sampler_beside_a_uniform_one_gets_priorities():
    buffer = ReplayBuffer(10, STEP, seed=0)
    ids = buffer.extend(obs=np.arange(10), reward=np.zeros(10))
    source = buffer.source(sampler=Prioritized(alpha=1.0, eps=0.0))
    assert source.update_priorities(ids, np.where(ids == 4, 1.0, 0.0)) == Applied(10, 0)
    drawn = source.plan(32, None)  # type: ignore[arg-type]  # it need not wait
    assert set(drawn.index.reshape(32, -1)[:, 0].tolist()) == {4}
    assert len(set(buffer.sample(100)["index"].tolist())) == 10
