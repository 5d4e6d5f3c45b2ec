"""A sampler's shortcuts change nothing: the same batches, weights, sums and notes as the steps that
they stand for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_rig import sums_are_exact

from async_loader import ReplayBuffer
from async_loader.replay.samplers import (
    Draw,
    Linear,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Uniform,
    shortcut,
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


def test_of_an_id_that_is_named_twice_the_last_priority_counts() -> None:
    buffer = ReplayBuffer(8, FIELDS, sampler=Prioritized(1.0, eps=0.0), seed=0)
    fill(buffer, 0, 8)
    assert (
        buffer.update_priorities(
            np.array([3, 5, 3, 99, -1]), np.array([9.0, 2.0, 4.0, 7.0, 7.0])
        ).stale
        == 2
    )
    sampler = debug_state(buffer).state.sampler
    assert sampler._masses.leaves[[3, 5]].tolist() == [4.0, 2.0]
    assert sampler._ever.largest == 9.0  # it was given, if not for long


def test_priorities_that_are_refused_change_nothing() -> None:
    buffer = ReplayBuffer(8, FIELDS, sampler=Prioritized(), seed=0)
    fill(buffer, 0, 8)
    before = debug_state(buffer).state.sampler._masses.nodes.copy()
    for bad in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match="priority 1 of 2"):
            buffer.update_priorities(np.array([0, 1]), np.array([5.0, bad]))
    assert (debug_state(buffer).state.sampler._masses.nodes == before).all()
    assert np.isnan(debug_state(buffer).state.table.given[:8]).all()


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


def test_a_sampler_that_draws_its_own_way_is_not_gone_round() -> None:
    for kind in (Prioritized, Uniform):
        assert shortcut(kind(), "draw_into", "draw") is not None
    for sampler in (StepwisePrioritized(), StepwiseUniform(), RankPrioritized()):
        assert shortcut(sampler, "draw_into", "draw") is None
        assert shortcut(sampler, "update_by_id", "update") is None

    class Again(StepwisePrioritized):
        def draw_into(self, reading: Any) -> bool:
            return False

    assert shortcut(Again(), "draw_into", "draw") is not None
    assert shortcut(Again(), "update_by_id", "update") is None


def test_every_sampler_that_uses_priorities_is_told_of_new_ones() -> None:
    buffer = ReplayBuffer(4, FIELDS, sampler=Prioritized(1.0, eps=0.0), remover=MinHeap(), seed=0)
    fill(buffer, 0, 4, np.ones(4))
    buffer.update_priorities(np.array([0, 1, 2, 3]), np.array([3.0, 1.0, 5.0, 4.0]))
    assert debug_state(buffer).state.sampler._masses.root == 13.0
    fill(buffer, 4, 1, np.full(1, 9.0))
    assert sorted(set(buffer.sample(200)["x"].tolist())) == [0, 2, 3, 4]


def test_a_batch_is_not_kept_by_what_drew_it() -> None:
    import weakref

    buffer = ReplayBuffer(8, FIELDS, sampler=Prioritized(), seed=0)
    fill(buffer, 0, 8)
    batch = buffer.sample(4)
    block = weakref.ref(batch["x"].base)
    del batch
    assert block() is None


def test_ids_of_any_layout_are_handed_on_in_one() -> None:
    """Or the kernel would be compiled anew, for seconds, under the table's lock."""
    from async_loader.replay.samplers import prioritized_kernels

    buffer = ReplayBuffer(8, FIELDS, sampler=Prioritized(1.0, eps=0.0), seed=0)
    fill(buffer, 0, 8)
    plain = np.arange(4)
    fixed = plain.copy()
    fixed.flags.writeable = False
    source = buffer.source()
    buffer.update_priorities(plain, np.ones(4))
    compiled = len(prioritized_kernels.update.signatures)  # type: ignore[attr-defined]
    for n, index in enumerate(
        (plain, fixed, np.arange(8)[::2] // 2, plain.astype(np.int32), plain.tolist())
    ):
        for update in (buffer.update_priorities, source.update_priorities):
            for priority in (np.full(4, n + 2.0), np.broadcast_to(np.float32(n + 2.0), 4)):
                buffer.update_priorities(plain, np.ones(4))
                assert update(index, priority).applied == 4
                assert (debug_state(buffer).state.sampler._masses.leaves[:4] == n + 2.0).all()
    assert len(prioritized_kernels.update.signatures) == compiled  # type: ignore[attr-defined]
