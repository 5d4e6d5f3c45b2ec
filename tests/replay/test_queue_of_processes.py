"""Queues, and other tables that keep their items, with writers in other processes: every step is
delivered as often as it should be, and no wait lasts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

from async_loader import AsyncDataLoader, Field, RateLimiter, ReplayBuffer
from async_loader.replay.multiprocess import WriterHandle

PATIENCE_S = 30.0
STEPS = int(os.environ.get("ASYNC_LOADER_QUEUE_STEPS", "240"))
"""Of each writer. More of them make a longer test of the same."""
PLAIN = {"x": "int64", "terminated": "bool"}
LINKED = {"x": Field((), "int64", next="next_x"), "terminated": "bool"}


def write(handle: WriterHandle, writer: int, steps: int, chunk: int) -> None:
    """Add ``steps`` steps in episodes of six, ``chunk`` at a time."""
    x = writer * 10**6 + np.arange(steps)
    ends = (np.arange(steps) % 6 == 5) | (np.arange(steps) == steps - 1)
    with handle.open(("actor", writer)) as into:
        for start in range(0, steps, chunk):
            some = slice(start, start + chunk)
            if chunk == 1:
                into.append(x=x[start], terminated=ends[start], timeout_s=PATIENCE_S)
            else:
                into.extend(x=x[some], terminated=ends[some], timeout_s=PATIENCE_S)


def delivered(
    buffer: ReplayBuffer, method: str, writers: int, chunk: int, batch: int, times: int = 1
) -> list[int]:
    """Return what is drawn, ``batch`` items at a time, while this many processes write."""
    context = multiprocessing.get_context(method)
    processes = [
        context.Process(target=write, args=(buffer.writer_handle(), number, STEPS, chunk))
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    got: list[int] = []
    left = writers * STEPS * times
    try:
        while left:
            count = min(batch, left)
            got += buffer.sample(count, timeout_s=PATIENCE_S)["x"].tolist()
            left -= count
        for process in processes:
            process.join(PATIENCE_S)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
    return got


def check(got: list[int], writers: int, times: int = 1, ordered: bool = True) -> None:
    wanted = [writer * 10**6 + i for writer in range(writers) for i in range(STEPS)]
    assert Counter(got) == Counter(dict.fromkeys(wanted, times))
    if ordered:
        for writer in range(writers):
            own = [x for x in got if x // 10**6 == writer]
            assert own == sorted(own)


@pytest.mark.parametrize("schema", [PLAIN, LINKED], ids=["plain", "linked"])
@pytest.mark.parametrize(
    ("writers", "size", "batch", "chunk"),
    [
        (1, 200, 16, 1),
        (3, 200, 16, 1),
        (2, 200, 64, 1),
        (3, 64, 64, 1),
        (3, 64, 32, 1),
        (3, 32, 4, 1),
        (3, 4, 4, 1),
        (2, 64, 64, 7),
        (3, 40, 33, 50),
    ],
)
def test_a_queue_delivers_all_steps_of_several_processes_once(
    schema: Any, writers: int, size: int, batch: int, chunk: int
) -> None:
    # three writers need eight rows each
    capacity = None if size >= 8 * writers or schema is LINKED else 8 * writers
    with ReplayBuffer.queue(size, schema, capacity=capacity) as buffer:
        got = delivered(buffer, "fork", writers, chunk, batch)
        assert not len(buffer)
    check(got, writers, ordered=schema is PLAIN)


@pytest.mark.parametrize("batch", [1, 8, 60])
def test_a_table_that_counts_draws_delivers_all_steps_of_several_processes(batch: int) -> None:
    limiter = RateLimiter(samples_per_insert=2, error_buffer=(0.0, 120.0))
    with ReplayBuffer(500, PLAIN, max_times_sampled=2, limiter=limiter) as buffer:
        got = delivered(buffer, "fork", 2, 1, batch, times=2)
    check(got, 2, times=2, ordered=False)


def test_a_loader_takes_a_queue_of_a_spawned_process() -> None:
    got: list[int] = []
    with ReplayBuffer.queue(32, PLAIN) as buffer:
        process = multiprocessing.get_context("spawn").Process(
            target=write, args=(buffer.writer_handle(), 0, STEPS, 1)
        )
        process.start()
        try:
            with AsyncDataLoader(buffer, 4, timeout_s=PATIENCE_S) as batches:
                for batch in batches:
                    got += batch["x"].tolist()
                    if len(got) == STEPS:
                        break
        finally:
            process.kill()
            process.join()
            process.close()
    check(got, 1)
