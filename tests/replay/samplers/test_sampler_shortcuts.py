"""A sampler's shortcuts change nothing: the same batches, weights, sums and notes as the steps that
they stand for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_rig import sums_are_exact

from async_loader import ReplayBuffer
from async_loader.replay.samplers import (
    Draw,
    Linear,
    Prioritized,
    Uniform,
)
from async_loader.testing.debug import debug_state


class StepwisePrioritized(Prioritized):
    """Overrides what has a shortcut, and so has none."""

    def draw(self, count: int) -> Draw:
        return super().draw(count)

    def update(self, rows: Any, priority: Any) -> None:
        super().update(rows, priority)


class StepwiseUniform(Uniform):
    def draw(self, count: int) -> Draw:
        return super().draw(count)


FIELDS = {"x": np.int64, "y": ((3,), np.float32), "over": np.bool_}


def fill(buffer: ReplayBuffer, start: int, count: int, priority: Any = None) -> None:
    x = np.arange(start, start + count)
    y = (x[:, None] * [1, 2, 3]).astype(np.float32)
    buffer.extend({"x": x, "y": y, "over": x % 3 == 0}, priority=priority)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert (array == other[name]).all(), name


def same_notes(one: ReplayBuffer, other: ReplayBuffer) -> None:
    mine, theirs = debug_state(one).state.table, debug_state(other).state.table
    assert np.array_equal(mine.given, theirs.given, equal_nan=True)
    assert (mine.dirty == theirs.dirty).all()
    for tree in ("_masses", "_least", "_most"):
        a, b = (
            getattr(debug_state(one).state.sampler, tree),
            getattr(debug_state(other).state.sampler, tree),
        )
        assert (a is None) == (b is None)
        assert a is None or (a.nodes == b.nodes).all()
    assert (
        debug_state(one).state.sampler._ever.largest
        == debug_state(other).state.sampler._ever.largest
    )


priorities = st.sampled_from([0.0, 0.0, 1e-300, 0.1, 0.7, 1.0, 2.0, 1e3, 1e100])
ids = st.integers(-3, 90)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 9), st.none() | priorities),
        st.tuples(st.just("update"), st.lists(st.tuples(ids, priorities), max_size=80), st.none()),
        st.tuples(st.just("delete"), st.lists(ids, max_size=5), st.none()),
        st.tuples(st.just("sample"), st.sampled_from([1, 2, 63, 64, 65, 200]), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    eps=st.sampled_from([0.0, 1e-6]),
    stratified=st.booleans(),
    normalize=st.sampled_from(["batch", "buffer", "none"]),
    new=st.sampled_from(["max_ever", "max_now"]),
    steps=steps,
)
def test_draws_and_updates_in_one_go_are_those_of_single_steps(
    alpha, eps, stratified, normalize, new, steps
):
    settings_ = {"stratified": stratified, "normalize": normalize, "new_priority": new}
    quick, slow = (
        ReplayBuffer(30, FIELDS, sampler=kind(alpha, Linear(0.3, 1.0, 5), eps, **settings_), seed=4)
        for kind in (Prioritized, StepwisePrioritized)
    )
    added = 0
    for what, value, priority in steps:
        if what == "add":
            for buffer in (quick, slow):
                fill(buffer, added, value, None if priority is None else np.full(value, priority))
            added += value
        elif what == "update":
            index, new_ = np.array([i for i, _ in value], np.int64), np.array([p for _, p in value])
            assert quick.update_priorities(index, new_) == slow.update_priorities(index, new_)
        elif what == "delete":
            assert quick.delete(np.array(value, np.int64)) == slow.delete(np.array(value, np.int64))
        elif len(quick):
            batch = quick.sample(value)
            same(batch, slow.sample(value))
            assert (batch["y"][:, 2] == batch["x"] * 3).all()
        same_notes(quick, slow)
    sums_are_exact(debug_state(quick).state.sampler._masses)


@settings(max_examples=30, deadline=None)
@given(
    held=st.integers(1, 30),
    gone=st.lists(st.integers(0, 29), max_size=25),
    count=st.sampled_from([1, 64, 300]),
)
def test_uniform_draws_in_one_go_are_those_of_single_steps(held, gone, count):
    quick, slow = (
        ReplayBuffer(30, FIELDS, sampler=kind(), seed=4) for kind in (Uniform, StepwiseUniform)
    )
    for buffer in (quick, slow):
        fill(buffer, 0, held)
        buffer.delete(np.array(gone[: held - 1], np.int64))
    for _ in range(3):
        same(quick.sample(count), slow.sample(count))
