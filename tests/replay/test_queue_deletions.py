"""Items that leave a queue without being drawn free their places: in every kind of queue, for every
kind of writer, and across a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import RateLimiter, ReplayBuffer
from async_loader.errors import Timeout

X = {"x": "int64"}


def queue(size: int) -> ReplayBuffer:
    return ReplayBuffer.queue(size, X)


def stack(size: int) -> ReplayBuffer:
    return ReplayBuffer.stack(size, X)


def twice(size: int) -> ReplayBuffer:
    """A table that keeps each item until it was drawn twice."""
    limiter = RateLimiter(samples_per_insert=2, error_buffer=(0.0, 2.0 * size))
    return ReplayBuffer(size, X, max_times_sampled=2, limiter=limiter)


def fill(buffer: ReplayBuffer, size: int) -> np.ndarray[Any, Any]:
    """Add ``size`` items, no more of which fit."""
    ids = np.array([buffer.add(x=i, timeout_s=0) for i in range(size)])
    with pytest.raises(Timeout):
        buffer.add(x=-1, timeout_s=0)
    return ids


@pytest.mark.parametrize("make", [queue, stack, twice])
def test_a_deleted_item_frees_its_place(make: Any) -> None:
    with make(4) as buffer:
        for deleted in (4, 2, 1, 4):
            ids = fill(buffer, 4)
            assert buffer.delete(ids[:deleted]).applied == deleted
            for i in range(deleted):
                buffer.add(x=i, timeout_s=0)
            with pytest.raises(Timeout):
                buffer.add(x=-1, timeout_s=0)
            assert len(buffer) == 4
            while len(buffer):
                buffer.sample(1, timeout_s=0)
            assert buffer.stats().sampled % 4 == 0


@pytest.mark.parametrize("make", [queue, twice])
@pytest.mark.parametrize("which", [[0], [1], [3], [1, 2], [0, 2], [1, 2, 3]])
def test_a_place_is_free_at_once_also_where_an_older_item_stays(
    make: Any, which: list[int], tmp_path: Path
) -> None:
    with make(4) as buffer:
        for _ in range(5):
            ids = fill(buffer, 4)
            buffer.delete(ids[which])
            new = [buffer.add(x=i, timeout_s=0) for i in range(len(which))]
            with pytest.raises(Timeout):
                buffer.add(x=-1, timeout_s=0)
            buffer.save(tmp_path)
            with ReplayBuffer.from_checkpoint(tmp_path) as loaded:
                assert len(loaded) == 4
            while len(buffer):
                got = buffer.sample(4, timeout_s=0)["index"].tolist()
                assert set(got) <= {*ids.tolist(), *new} - set(ids[which].tolist())


@pytest.mark.parametrize("make", [queue, stack, twice])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_queue_that_was_saved_is_as_large_as_before(
    make: Any, in_place: bool, tmp_path: Path
) -> None:
    with make(4) as buffer:
        buffer.delete(fill(buffer, 4)[:3])
        buffer.sample(1, timeout_s=0)
        buffer.save(tmp_path)
        left = len(buffer)
        loaded = buffer if in_place else ReplayBuffer.from_checkpoint(tmp_path)
        if in_place:
            buffer.load(tmp_path)
        with loaded:
            room = 0
            while True:
                try:
                    loaded.add(x=room, timeout_s=0)
                except Timeout:
                    break
                room += 1
            assert room == 4 - left
            loaded.delete(loaded.sample(1, timeout_s=0)["index"])
            loaded.clear()
            fill(loaded, 4)
