"""Ctrl-C at any point of a call that draws, changes by id, saves, loads or closes: the table goes
on, and no item is lost.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storm_rig import count_points, some_points, strike

from async_loader import Field, Fifo, Lifo, Prioritized, RateLimiter, ReplayBuffer, Uniform
from async_loader.replay.rate_limiter import Queue
from async_loader.testing.debug import debug_state

SCHEMA = {"obs": Field((), "int64", next="next_obs"), "reward": "float32"}
MOST = 120


def queue(sampler: Any = Fifo) -> ReplayBuffer:
    buffer = ReplayBuffer(
        32, SCHEMA, sampler=sampler(), limiter=Queue(24), max_times_sampled=1, seed=0
    )
    for t in range(24):
        buffer.add(obs=t, reward=0.0)
    return buffer


def drained(buffer: ReplayBuffer) -> list[int]:
    got: list[int] = []
    while left := len(buffer) + buffer.stats().interrupted:
        got += buffer.sample(min(5, left), timeout_s=0)["obs"].tolist()
    return got


@pytest.mark.parametrize(
    "sampler", [Fifo, Lifo, Uniform, Prioritized], ids=lambda one: one.__name__
)
def test_a_draw_that_is_struck_gives_its_items_back(sampler: Any) -> None:
    queue_sample(queue(sampler))  # what is imported or compiled is so from here on
    total = count_points(functools.partial(queue_sample, queue(sampler)))
    for at in some_points(total, MOST):
        buffer = queue(sampler)
        struck = strike(lambda buffer=buffer: queue_sample(buffer), at)
        got = struck.result["obs"].tolist() if struck.raised is None else []
        assert struck.raised is None or isinstance(struck.raised, KeyboardInterrupt), struck
        got += drained(buffer)
        assert sorted(got) == list(range(23)), struck.where
        stats = buffer.stats()
        assert (stats.inserted, stats.sampled, stats.size) == (23, 23, 0), struck.where
        buffer.add(obs=24, reward=0.0, timeout_s=0)
        assert buffer.sample(1, timeout_s=0)["obs"].tolist() == [23], struck.where


def queue_sample(buffer: ReplayBuffer) -> dict[str, Any]:
    return buffer.sample(7, timeout_s=0)


def test_a_draw_of_a_limited_table_that_is_struck_is_not_counted() -> None:
    def made() -> ReplayBuffer:
        buffer = ReplayBuffer(
            64,
            {"x": "int64"},
            limiter=RateLimiter(
                min_size_to_sample=4, samples_per_insert=1.0, error_buffer=(0.0, 64.0)
            ),
            seed=0,
        )
        for t in range(20):
            buffer.add(x=t)
        return buffer

    made().sample(8, timeout_s=0)  # what is imported or compiled is so from here on
    total = count_points(functools.partial(made().sample, 8, timeout_s=0))
    for at in some_points(total, MOST):
        buffer = made()
        struck = strike(lambda buffer=buffer: buffer.sample(8, timeout_s=0), at)
        assert buffer.stats().sampled == (8 if struck.raised is None else 0), struck.where
        assert len(buffer.sample(4, timeout_s=0)["x"]) == 4


CALLS = {
    "update_priorities": lambda buffer, path: buffer.update_priorities(np.arange(8), np.ones(8)),
    "update": lambda buffer, path: buffer.update(np.arange(8), reward=np.full(8, 3.0, np.float32)),
    "delete": lambda buffer, path: buffer.delete(np.arange(4)),
    "save": lambda buffer, path: buffer.save(path),
    "load": lambda buffer, path: ReplayBuffer.from_checkpoint(path),
    "close": lambda buffer, path: buffer.close(),
}


# struck between open() and its `with`, in -X dev
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")
# struck there
@pytest.mark.filterwarnings("ignore:.*Descriptor.__del__:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(600)  # of hundreds of saves, each of which waits for the disk
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_struck_leaves_a_table_that_goes_on_and_saves_whole(
    call: str, tmp_path: Path
) -> None:
    def made() -> ReplayBuffer:
        buffer = ReplayBuffer(32, SCHEMA, sampler=Prioritized(alpha=0), seed=0)
        for t in range(40):
            buffer.add(obs=t, reward=0.0)
        buffer.save(tmp_path)
        return buffer

    CALLS[call](made(), tmp_path)  # what is imported or compiled is so from here on
    total = count_points(functools.partial(CALLS[call], made(), tmp_path))
    for at in some_points(total, 60 if call in ("save", "load") else MOST):
        buffer = made()
        struck = strike(lambda buffer=buffer: CALLS[call](buffer, tmp_path), at)
        assert struck.raised is None or isinstance(struck.raised, KeyboardInterrupt), struck
        if debug_state(buffer).state.closed:
            continue
        buffer.add(obs=99, reward=0.0)
        buffer.save(tmp_path)
        again = ReplayBuffer.from_checkpoint(tmp_path)
        for one in (buffer, again):
            drawn = one.sample(3000)
            assert len(np.unique(drawn["index"])) == len(one) == len(again), struck.where
            assert (drawn["next_obs"] == drawn["obs"] + 1).all() or 99 in drawn["next_obs"]
