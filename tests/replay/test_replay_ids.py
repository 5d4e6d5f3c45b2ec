"""Ids: updates, deletions and priorities reach the step with that id or no step; and how large a
table is.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from async_loader import Field, Fifo, MinHeap, Prioritized, ReplayBuffer, Uniform
from async_loader.errors import ConfigError, OutOfMemory, SchemaError, Unsupported
from async_loader.source import Applied
from async_loader.testing.debug import debug_state


def numbered(capacity: int, count: int, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(
        capacity,
        {"x": np.int64, "nested": {"y": ((2,), np.float32)}, "terminated": np.bool_},
        seed=0,
        **options,
    )
    x = np.arange(count)
    buffer.extend(
        x=x,
        nested={"y": np.repeat(x[:, None], 2, 1).astype(np.float32)},
        terminated=np.zeros(count, bool),
    )
    return buffer


def test_a_late_reward_reaches_its_step_or_none() -> None:
    buffer = numbered(10, 25)
    assert buffer.update([16, 3, 24, 99, -1], x=np.array([-16, -3, -24, -99, -1])) == Applied(2, 3)
    assert buffer.update(torch.tensor([20]), nested={"y": torch.full((1, 2), -20.0)}) == Applied(
        1, 0
    )
    batch = buffer.sample(500)
    assert set(batch["x"].tolist()) == {15, -16, 17, 18, 19, 20, 21, 22, 23, -24}
    assert set(batch["nested"]["y"][batch["index"] == 20].ravel()) == {-20.0}
    assert set(batch["nested"]["y"][batch["index"] == 21].ravel()) == {21.0}


def test_of_an_id_that_is_named_twice_the_last_value_counts() -> None:
    buffer = numbered(10, 10, sampler=Prioritized(alpha=1.0, eps=0.0))
    assert buffer.update([3, 3, 3], x=np.array([1, 2, -3])) == Applied(3, 0)
    assert set(buffer.sample(200)["x"].tolist()) >= {-3}
    buffer.update_priorities(np.arange(10), np.zeros(10))
    assert buffer.update_priorities([4, 4, 5], [0.0, 1.0, 0.0]) == Applied(3, 0)
    assert set(buffer.sample(50)["index"].tolist()) == {4}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"z": np.zeros(1)}, "'z' cannot be updated: x, nested.y can"),
        ({"terminated": np.ones(1, bool)}, "'terminated' cannot be updated"),
        ({"x": np.zeros(2, np.int64)}, "2 rows for 1 ids"),
        ({"x": np.zeros(1)}, "float64"),
        ({"nested": {"y": np.zeros((1, 3), np.float32)}}, "shape"),
    ],
)
def test_updates_that_do_not_fit_are_refused_and_change_nothing(fields: Any, said: str) -> None:
    buffer = numbered(10, 10)
    with pytest.raises(SchemaError, match=said):
        buffer.update([3], **fields)
    assert sorted(set(buffer.sample(300)["x"].tolist())) == list(range(10))


def test_deleted_items_are_drawn_no_more() -> None:
    buffer = numbered(10, 15)
    assert buffer.delete([7, 8, 8, 2, 14]) == Applied(3, 2)
    assert buffer.delete([7]) == Applied(0, 1)
    assert set(buffer.sample(300)["index"].tolist()) == {5, 6, 9, 10, 11, 12, 13}
    assert (len(buffer), buffer.stats().deleted) == (7, 8)
    assert buffer.update([7], x=np.array([1])) == Applied(1, 0)  # its neighbours still show it
    assert buffer.update([2], x=np.array([1])) == Applied(0, 1)  # this one has left the table
    buffer.delete(np.arange(20))
    with pytest.raises(ConfigError, match="the table holds 0 that can be drawn"):
        buffer.sample(1)


def test_a_deleted_step_that_was_no_item_yet_never_becomes_one() -> None:
    buffer = ReplayBuffer(10, {"x": Field(dtype=np.int64, next="y")})
    for n in range(3):
        buffer.add(x=n)
    assert buffer.delete([2]) == Applied(1, 0)
    for n in range(3, 5):
        buffer.add(x=n)
    assert set(buffer.sample(100)["index"].tolist()) == {0, 1, 3}


def test_a_priority_for_a_step_that_is_no_item_yet_waits_for_it() -> None:
    buffer = ReplayBuffer(
        10, {"x": Field(dtype=np.int64, next="y")}, sampler=Prioritized(alpha=1.0, eps=0.0)
    )
    buffer.add(x=0, priority=1.0)
    buffer.add(x=1, priority=1.0)
    assert buffer.update_priorities([1], [0.0]) == Applied(1, 0)
    buffer.add(x=2, priority=1.0)
    assert set(buffer.sample(60)["index"].tolist()) == {0}


def test_priorities_of_overwritten_steps_land_nowhere() -> None:
    buffer = numbered(
        64,
        64,
        sampler=Prioritized(alpha=1.0, eps=0.0),
    )
    batches = [buffer.sample(16)["index"] for _ in range(8)]
    for lap in range(1, 4):
        buffer.extend(
            x=np.arange(64),
            nested={"y": np.zeros((64, 2), np.float32)},
            terminated=np.zeros(64, bool),
            priority=np.full(64, float(lap)),
        )
        before = debug_state(buffer).state.sampler._masses.leaves.copy()
        for index in batches:
            assert buffer.update_priorities(index, np.full(16, 1000.0)) == Applied(0, 16)
        assert (debug_state(buffer).state.sampler._masses.leaves == before).all()


def test_priorities_are_checked_before_any_is_changed() -> None:
    buffer = numbered(10, 10, sampler=Prioritized())
    for bad, said in ((np.nan, "is NaN"), (-1.0, "is -1"), (np.inf, "is inf")):
        before = debug_state(buffer).state.sampler._masses.leaves.copy()
        with pytest.raises(ConfigError, match=f"priority 1 of 2 {said}"):
            buffer.update_priorities([1, 2], [5.0, bad])
        assert (debug_state(buffer).state.sampler._masses.leaves == before).all()
    with pytest.raises(ConfigError, match="one for each"):
        buffer.update_priorities([1, 2], [5.0])
    with pytest.raises(ConfigError, match="ids are integers"):
        buffer.update_priorities([1.5], [5.0])
    with pytest.raises(Unsupported, match="no priorities to update"):
        numbered(10, 10).update_priorities([1], [1.0])
    with pytest.raises(Unsupported, match="leave them out"):
        numbered(10, 10).add(
            x=1, nested={"y": np.zeros(2, np.float32)}, terminated=False, priority=1.0
        )


@pytest.mark.parametrize("most", [1, 3])
def test_an_item_is_gone_after_its_last_draw(most: int) -> None:
    buffer = numbered(20, 20, max_times_sampled=most)
    drawn = np.concatenate([buffer.sample(10)["x"] for _ in range(2 * most)])
    assert np.bincount(drawn).tolist() == [most] * 20
    assert (len(buffer), buffer.stats().sampled) == (0, 20 * most)
    with pytest.raises(ConfigError):
        buffer.sample(1)


def test_more_draws_than_are_left_are_waited_for() -> None:
    buffer = numbered(20, 4, max_times_sampled=2)
    with pytest.raises(ConfigError, match="cannot draw 9 items"):
        buffer.sample(9)
    assert np.bincount(buffer.sample(8)["x"]).tolist() == [2, 2, 2, 2]


def test_the_lowest_priority_makes_room() -> None:
    buffer = ReplayBuffer(3, {"x": np.int64}, sampler=Uniform(replacement=False), remover=MinHeap())
    ids = [buffer.add(x=n, priority=p) for n, p in enumerate([5.0, 1.0, 3.0, 4.0, 2.0, 9.0])]
    assert len(set(ids)) == 6
    assert sorted(buffer.sample(3)["x"].tolist()) == [0, 3, 5]
    assert buffer.update_priorities([ids[0], ids[1]], [0.5, 7.0]) == Applied(1, 1)
    buffer.add(x=6, priority=8.0)
    assert sorted(buffer.sample(3)["x"].tolist()) == [3, 5, 6]


def test_ids_are_never_given_twice_whatever_makes_room() -> None:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(7, {"x": np.int64}, remover=MinHeap())
    seen: set[int] = set()
    for n in range(500):
        new = buffer.add(x=n, priority=float(rng.random()))
        assert new not in seen
        seen.add(new)
        batch = buffer.sample(4)
        if n % 5 == 4:
            buffer.delete(batch["index"][:2])
        assert set(batch["index"].tolist()) <= seen
    assert len(buffer) <= 7


def test_a_sampler_belongs_to_one_table() -> None:
    sampler = Fifo()
    ReplayBuffer(3, {"x": np.int64}, sampler=sampler)
    with pytest.raises(ConfigError, match="belongs to another table"):
        ReplayBuffer(3, {"x": np.int64}, sampler=sampler)
    with pytest.raises(ConfigError, match="give an instance, as in sampler=Uniform"):
        ReplayBuffer(3, sampler=Uniform)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give a RateLimiter"):
        ReplayBuffer(3, limiter=3)  # type: ignore[arg-type]


# -- how large -------------------------------------------------------------------------------------


SCHEMAS = [
    {"x": np.int8},
    {"image": ((64, 64), np.uint8), "x": np.complex128},
    {"obs": ((17,), np.float32), "none": ((0,), "i1")},
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("capacity", [1, 100, 12_345])
def test_the_memory_that_is_told_is_what_the_system_gives(schema: Any, capacity: int) -> None:
    told = ReplayBuffer.nbytes_for(capacity, schema)
    buffer = ReplayBuffer(capacity, schema)
    assert buffer.nbytes == told
    maps = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:async_loader" in line
    ]
    assert told in [int(end, 16) - int(start, 16) for start, end in maps]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_capacity_in_bytes_is_the_most_steps_that_fit(schema: Any) -> None:
    buffer = ReplayBuffer("1MiB", schema)
    assert buffer.nbytes <= 1 << 20 < ReplayBuffer.nbytes_for(buffer.capacity + 1, schema)
    assert ReplayBuffer(10, schema, max_bytes="1MiB").capacity == 10
    assert ReplayBuffer(10**9, schema, max_bytes=1 << 20).capacity == buffer.capacity
    late = ReplayBuffer("1MiB")
    assert late.capacity is None
    late.add(x=np.zeros(1000))
    assert 0 < late.capacity < 1 << 20
    with pytest.raises(ConfigError, match=r"one step of .* already takes"):
        ReplayBuffer("100B", {"x": ((1000,), np.float32)})


def test_too_many_bytes_are_refused_before_they_are_taken() -> None:
    with pytest.raises(OutOfMemory, match=r"needs .*TiB|needs .*GiB"):
        ReplayBuffer("100TiB", {"x": np.int64})
    with pytest.raises(ConfigError, match="give bytes once"):
        ReplayBuffer("1GiB", max_bytes="1GiB")


def test_any_number_of_threads_update_delete_and_draw() -> None:
    buffer = ReplayBuffer(
        200, {"x": np.int64, "y": ((8,), np.int64)}, sampler=Prioritized(), seed=0
    )
    buffer.extend(x=np.arange(200), y=np.repeat(np.arange(200)[:, None], 8, 1))
    torn: list[Any] = []
    stop = threading.Event()

    def change() -> None:
        rng = np.random.default_rng(threading.get_ident() % 1000)
        for n in range(300):
            index = buffer.sample(8)["index"]
            value = rng.integers(0, 10**6, 8)
            buffer.update(index, x=value, y=np.repeat(value[:, None], 8, 1))
            buffer.update_priorities(index, rng.random(8))
            buffer.extend(x=np.full(3, n), y=np.full((3, 8), n))
            buffer.delete(index[:1])

    def look() -> None:
        while not stop.is_set():
            batch = buffer.sample(32)
            if (batch["y"] != batch["x"][:, None]).any():
                torn.append(batch)

    changing = [threading.Thread(target=change) for _ in range(3)]
    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in (*changing, *looking):
        thread.start()
    for thread in changing:
        thread.join()
    stop.set()
    for thread in looking:
        thread.join()
    assert not torn
