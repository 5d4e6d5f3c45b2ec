"""Items that leave a queue without being drawn free their places: in every kind of queue, for every
kind of writer, and across a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import Field, RateLimiter, ReplayBuffer
from async_loader.errors import Timeout
from async_loader.feeder import connect
from tests.replay.test_replay_waiters import Doing, until

PATIENCE_S = 60.0
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


def test_an_item_that_was_drawn_before_it_is_deleted_counts_for_what_is_left() -> None:
    with twice(2) as buffer:
        ids = fill(buffer, 2)
        drawn = buffer.sample(1, timeout_s=0)["index"]  # it has one draw left
        buffer.delete(drawn)
        buffer.add(x=5, timeout_s=0)
        with pytest.raises(Timeout):
            buffer.add(x=6, timeout_s=0)
        got = buffer.sample(4, timeout_s=0)["index"].tolist()
        assert sorted(got) == sorted(2 * [*set(ids.tolist()) - set(drawn.tolist()), max(got)])
        fill(buffer, 2)


def test_the_numbers_of_a_full_queue_do_not_count_what_was_deleted() -> None:
    with queue(3) as buffer:
        buffer.delete(fill(buffer, 3)[:2])
        buffer.add(x=0)
        buffer.add(x=1)
        with pytest.raises(Timeout, match=r"finds 3 items that wait .* at most 3 may"):
            buffer.add(x=2, timeout_s=0)


def test_a_deletion_wakes_a_writer() -> None:
    with queue(2) as buffer, buffer.writer() as writer:
        ids = fill(buffer, 2)
        for write in (buffer.add, writer.append):
            waiting = Doing(lambda write=write: write(x=7, timeout_s=PATIENCE_S))
            until(lambda: buffer.stats().waiting)
            buffer.delete(ids[:1])
            new = waiting.done()
            ids = np.array([*ids[1:], new])
        until(lambda: len(buffer) == 2)


def test_a_step_that_its_episode_gives_up_frees_its_place() -> None:
    schema = {"x": Field((), "int64", next="next_x")}
    with ReplayBuffer.queue(2, schema) as buffer:
        for i in range(20):
            while True:
                try:
                    buffer.add(x=i, timeout_s=0)
                    buffer.add(x=i, timeout_s=0)
                    break
                except Timeout:
                    buffer.sample(1, timeout_s=0)
            buffer.end_episode()  # without the observation after its last step
        while len(buffer):
            buffer.sample(1, timeout_s=0)
        assert buffer.stats().inserted == buffer.stats().deleted


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


def test_a_queue_of_a_feeder_does_so_too() -> None:
    with connect("embedded", tables={"one": {"queue": 2, "schema": X}}) as client:
        table = client.table("one")
        with table.writer(batch_rows=1) as writer:
            for i in range(2):
                writer.append(x=i)
            writer.flush(PATIENCE_S)
            for i in range(2, 6):
                table.delete([i - 2])
                writer.append(x=i)
                writer.flush(PATIENCE_S)
        assert sorted(table.sample(2, timeout_s=PATIENCE_S)["x"].tolist()) == [4, 5]
