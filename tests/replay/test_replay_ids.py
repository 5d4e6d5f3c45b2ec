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

from async_loader import Prioritized, ReplayBuffer
from async_loader.source import Applied
from tests.table_parts import debug_state


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
