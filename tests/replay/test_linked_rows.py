"""Stacks, successors and returns that are read in one pass with the draw: the same arrays as by the
reader that takes no lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    Field,
    Lifo,
    MaxHeap,
    Prioritized,
    RankPrioritized,
    ReplayBuffer,
    Sampler,
    Transitions,
    Uniform,
)
from async_loader.errors import NotEnoughData
from async_loader.replay.base.row_format import ID, STACK_WORDS
from async_loader.replay.table.reader import ReplayReader
from async_loader.testing.debug import debug_state

SAMPLERS = [Uniform, Prioritized, RankPrioritized, lambda: Uniform(replacement=False)]


def steps(
    stack: int, padding: str, linked: bool, reward: Any, ends: list[bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and steps of one episode after the other; the last step of each has ``ends``."""
    count = len(ends)
    schema = {
        "obs": Field((3,), "float32", stack=stack, padding=padding, next="after")
        if linked
        else Field((3,), "float32", stack=stack, padding=padding),
        "next_value": "int16",
        "reward": reward,
        "terminated": "bool",
    }
    numbers = np.arange(1, count + 1)
    shape, dtype = reward if isinstance(reward, tuple) else ((), reward)
    return schema, {
        "obs": np.repeat(numbers[:, None], 3, 1).astype(np.float32),
        "next_value": numbers.astype(np.int16),
        "reward": np.random.default_rng(count).normal(size=(count, *shape)).astype(dtype),
        "terminated": np.array(ends),
    }


def assert_as_read_without_lock(buffer: ReplayBuffer, batch_size: int) -> None:
    """Draw a batch, and read its ids once more by the kernels that take no lock."""
    parts = debug_state(buffer)
    made: list[int] = []
    reader_of = ReplayReader._read

    def noted(self: ReplayReader, *arguments: Any) -> Any:
        made.append(1)
        return reader_of(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplayReader, "_read", noted)
        batch = buffer.sample(batch_size)
    assert not made, "the draw was not read in one pass"
    plan = parts.table_sampler.read_plan(None)
    into, gone = ReplayReader(parts.state.table.storage, plan).take(batch["index"])
    assert not len(gone)
    for field, expected in zip(plan.schema.fields, into.fields, strict=True):
        np.testing.assert_array_equal(batch[field.name], expected, field.name)


@settings(max_examples=80, deadline=None)
@given(
    ends=st.lists(st.sampled_from([False, False, False, True]), min_size=8, max_size=60),
    streams=st.integers(1, 3),
    capacity=st.integers(24, 40),
    stack=st.integers(1, 4),
    padding=st.sampled_from(["zero", "repeat"]),
    linked=st.booleans(),
    n_steps=st.integers(0, 5),
    reward=st.sampled_from(["float32", "float64", ((2,), "float32"), ((3,), "float64")]),
    sampler=st.sampled_from(SAMPLERS),
    remover=st.sampled_from([None, Lifo, MaxHeap]),
    batch_size=st.integers(1, 70),
)
def test_a_draw_in_one_pass_gives_what_the_reader_gives(
    ends: list[bool],
    streams: int,
    capacity: int,
    stack: int,
    padding: str,
    linked: bool,
    n_steps: int,
    reward: Any,
    sampler: Any,
    remover: Any,
    batch_size: int,
) -> None:
    schema, data = steps(stack, padding, linked, reward, ends)
    view = Transitions(n_steps=n_steps, gamma=0.93) if n_steps else None
    made: Sampler = sampler()
    remover = None if remover is None or stack > 1 or linked or n_steps > 1 else remover()
    with ReplayBuffer(capacity, schema, view=view, sampler=made, remover=remover, seed=1) as buffer:
        for i in range(len(ends)):
            step = {name: column[i] for name, column in data.items()}
            buffer.add(step, stream=i % streams)
            if ends[i] and linked and i % 2:
                buffer.end_episode(stream=i % streams, final_obs=np.full(3, -i, np.float32))
        size = len(buffer)
        if not made.repeats:
            batch_size = min(batch_size, size)
        if size == 0:
            with pytest.raises(NotEnoughData):
                buffer.sample(batch_size or 1)
            return
        assert_as_read_without_lock(buffer, batch_size)
        buffer.delete(buffer.sample(1)["index"])
        if len(buffer) >= batch_size:
            assert_as_read_without_lock(buffer, batch_size)


def test_the_loader_and_a_target_of_ones_own_get_discounts_too() -> None:
    schema, data = steps(2, "zero", True, "float32", [False] * 30)
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


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankPrioritized])
def test_an_item_whose_successor_is_missing_is_drawn_again(sampler: Any) -> None:
    schema, data = steps(1, "zero", True, "float32", [False] * 20)
    with ReplayBuffer(64, schema, view=Transitions(n_steps=2), sampler=sampler(), seed=0) as buffer:
        buffer.extend(data, stream=0)
        storage = debug_state(buffer).state.table.storage
        storage.heads()[10, ID // 8] = 0
        batch = buffer.sample(64)
        assert set(batch["index"].tolist()) <= set(range(18)) - {8, 9, 10}
        np.testing.assert_array_equal(batch["after"][:, 0], batch["obs"][:, 0] + 2)


def test_a_return_of_more_rows_than_one_pass_holds_is_read_as_well() -> None:
    schema, data = steps(1, "zero", True, "float32", [False] * 200)
    n_steps = STACK_WORDS + 1
    with ReplayBuffer(256, schema, view=Transitions(n_steps=n_steps, gamma=1.0), seed=0) as buffer:
        buffer.extend(data, stream=0)
        batch = buffer.sample(32)
        np.testing.assert_array_equal(batch["after"][:, 0], batch["obs"][:, 0] + n_steps)
        expected = [data["reward"][i : i + n_steps].sum(dtype=np.float64) for i in batch["index"]]
        np.testing.assert_allclose(batch["reward"], expected, rtol=1e-5, atol=1e-5)
