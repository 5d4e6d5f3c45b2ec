"""Ctrl-C at any point of a call that changes what a sampler holds: afterwards it draws the items of
the table, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from storm_rig import count_points, some_points, strike

from async_loader import (
    Balanced,
    Fifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    ReplayBuffer,
    Sequences,
    Uniform,
)
from async_loader.testing.debug import debug_state

CAPACITY, MOST = 40, 40


def prioritized(**settings: Any) -> Callable[[], ReplayBuffer]:
    return lambda: table(Prioritized(alpha=0.0, **settings))


def table(sampler: Any, remover: Any = None, view: Any = None) -> ReplayBuffer:
    schema = {"x": "int64", "kind": "int64"}
    buffer = ReplayBuffer(
        CAPACITY, schema, sampler=sampler, remover=remover or Fifo(), view=view, seed=1
    )
    for n in range(CAPACITY - 5):
        add(buffer, n)
    return buffer


def add(buffer: ReplayBuffer, n: int) -> None:
    priority = {"priority": float(n % 7)} if buffer.sampler.prioritized else {}
    buffer.add(x=n, kind=n % 3, **priority)


def add_many(buffer: ReplayBuffer) -> None:
    """The last ones take the places of others."""
    first = int(buffer.stats().inserted)
    for n in range(first, first + 8):
        add(buffer, n)
    len(buffer)  # looks at the table: what was staged is written


KINDS: dict[str, Callable[[], ReplayBuffer]] = {
    "max heap": lambda: table(MaxHeap()),
    "min heap, and removed by it": lambda: table(MinHeap(), MinHeap()),
    "ranks": lambda: table(RankPrioritized(alpha=0.0, resort_every=1)),
    "recency": lambda: table(Recency(half_life=1e6)),
    "recency of few": lambda: sparse(Recency(half_life=1e6)),
    "uniform of few": lambda: sparse(Uniform()),
    "balanced": lambda: table(Balanced("kind")),
    "prioritized, bounded": prioritized(normalize="buffer", new_priority="max_now"),
    "sequences": lambda: table(Uniform(), view=Sequences(2)),
}


def sparse(sampler: Any) -> ReplayBuffer:
    """Few of its rows hold an item."""
    buffer = table(sampler)
    buffer.delete(np.arange(30))
    if isinstance(sampler, Uniform):
        buffer.sample(8)  # makes the list of rows
    return buffer


CALLS: dict[str, Callable[[ReplayBuffer], Any]] = {
    "add": add_many,
    "delete": lambda buffer: buffer.delete(np.array([31, 33])),
    "update": lambda buffer: buffer.update_priorities(np.array([31, 32]), np.array([9.0, 0.5])),
    "draw": lambda buffer: buffer.sample(8),
}


def items(buffer: ReplayBuffer) -> set[int]:
    """The ids that may be drawn: all that are in the table, or those with a successor."""
    table_state = debug_state(buffer).state
    with table_state.lock:
        table_state.own()
        found = table_state.table
        heads = found.storage.heads()
        alive = found.items.alive != 0
        return set((heads[alive, 0] - 1).tolist())


def drawn(buffer: ReplayBuffer) -> set[int]:
    view = buffer.view is not None
    repeats = not isinstance(buffer.sampler, MaxHeap | MinHeap)
    count = 60 * len(buffer) if repeats else len(buffer)
    index = buffer.sample(count)["index"]
    return set((index[:, 0] if view and index.ndim > 1 else index).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_a_sampler_holds_the_items_of_the_table_after_ctrl_c_anywhere(made, call) -> None:
    if call is CALLS["update"] and not made().sampler.prioritized:
        pytest.skip("its items have no priorities")
    call(made())  # what is imported or compiled is so from here on
    buffer = made()
    total = count_points(lambda: call(buffer))
    for at in some_points(total, MOST, seed=3):
        buffer = made()
        struck = strike(lambda buffer=buffer: call(buffer), at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        there = items(buffer)
        found = drawn(buffer)
        assert found <= there, (struck.where, found - there)
        if buffer.view is None:
            assert found == there, (struck.where, there - found)
        add_many(buffer)
        add_many(buffer)
        there, found = items(buffer), drawn(buffer)
        assert found <= there, (struck.where, found - there)
        if buffer.view is None:
            assert found == there, (struck.where, there - found)
