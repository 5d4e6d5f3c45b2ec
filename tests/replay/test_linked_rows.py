"""Stacks, successors and returns that are drawn and read by one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader import (
    Field,
    Prioritized,
    ReplayBuffer,
    Transitions,
)
from async_loader.replay.table.reader import ReplayReader
from async_loader.testing.debug import debug_state


def steps(count: int, stack: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and steps of one episode."""
    schema = {
        "obs": Field((3,), "float32", stack=stack, padding="zero", next="after"),
        "reward": "float32",
        "terminated": "bool",
    }
    return schema, {
        "obs": np.repeat(np.arange(1, count + 1)[:, None], 3, 1).astype(np.float32),
        "reward": np.random.default_rng(count).normal(size=count).astype(np.float32),
        "terminated": np.zeros(count, np.bool_),
    }


def test_the_loader_and_a_target_of_ones_own_get_discounts_too() -> None:
    schema, data = steps(30, stack=2)
    with ReplayBuffer(
        64, schema, view=Transitions(n_steps=3, gamma=0.5), sampler=Prioritized(), seed=0
    ) as buffer:
        buffer.extend(data, stream=0)
        parts = debug_state(buffer)
        plan = parts.table_sampler.read_plan(None, parts.state.sampler)
        reader = ReplayReader(parts.state.table.storage, plan)
        arrays = [np.zeros((12, *field.shape), field.dtype) for field in plan.schema.fields]
        parts.table_sampler.fill(reader, parts.state.sampler, reader.target(arrays))
        filled = dict(zip([field.name for field in plan.schema.fields], arrays, strict=True))
        np.testing.assert_array_equal(filled["discount"], np.full(12, 0.125, np.float32))
        np.testing.assert_array_equal(filled["after"][:, -1, 0], filled["obs"][:, -1, 0] + 3)
        drawn = buffer.source().draw_now(12)
        assert drawn is not None
        np.testing.assert_array_equal(drawn.batch["discount"], np.full(12, 0.125, np.float32))
