"""Ctrl-C within any call of a table: the table is used on, and delivers no wrong row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from async_loader import (
    Balanced,
    Fifo,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    ReplayBuffer,
    Sequences,
    Uniform,
)
from async_loader.errors import NotEnoughData, Timeout
from async_loader.replay.rate_limiter import Queue
from tests.carried_state import compared

ROUNDS, CALLS = 5, 12
SCHEMA = {"x": "int64", "task": "int64", "y": ((3,), "float32"), "terminated": "bool"}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": Uniform()},
    "prioritized": {"sampler": Prioritized(new_priority="max_now", normalize="buffer")},
    "rank": {"sampler": RankPrioritized(), "remover": MinHeap()},
    "recency": {"sampler": Recency(5.0)},
    "balanced": {"sampler": Balanced("task")},
    "queue": {"sampler": Fifo(), "max_times_sampled": 1, "limiter": Queue(20)},
    "used up": {"sampler": Uniform(), "max_times_sampled": 2, "remover": Fifo()},
    "sequences": {"sampler": Prioritized(), "view": Sequences(3, boundary="pad")},
}


@pytest.fixture
def compare() -> Iterator[None]:
    """What is carried is what the rows say."""
    with compared():
        yield


def struck(call: Callable[[], Any], after: int) -> bool:
    """Make a call, and raise KeyboardInterrupt in the package after some lines."""
    left = after

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        file = frame.f_code.co_filename
        # it defers signals
        if "/async_loader/replay/" not in file or file.endswith("disk.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    except (NotEnoughData, Timeout):
        return False
    finally:
        sys.settrace(before)
    return False


def step(x: int) -> dict[str, Any]:
    y = np.full(3, x, np.float32)
    return {"x": x, "task": x % 3, "y": y, "terminated": x % 7 == 6}


def is_whole(batch: Any, view: object) -> bool:
    x = np.asarray(batch["x"])
    there = batch["mask"] if view is not None else np.ones(x.shape, np.bool_)
    right = (batch["y"] == x[..., None]).all(-1) & (batch["terminated"] >= (x % 7 == 6))
    return bool(right[there].all())


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_table_goes_on_after_ctrl_c_anywhere(settings, seed, tmp_path, compare) -> None:
    rng = np.random.default_rng(seed)
    limited, view = "limiter" in settings, settings.get("view")
    made = dict(settings)
    for name in ("sampler", "remover"):
        if name in made:
            made[name] = eval(repr(made[name]))
    buffer = ReplayBuffer(24, SCHEMA, seed=seed, **made)
    writer, x = buffer.writer(), 0
    timeout = {"timeout_s": 0.0} if limited else {}

    def add() -> None:
        nonlocal x
        x += 1
        writer.append(step(x - 1), **timeout)

    def extend() -> None:
        nonlocal x
        rows = [step(x + i) for i in range(5)]
        x += 5
        columns = {name: np.array([row[name] for row in rows]) for name in SCHEMA}
        buffer.extend(columns, stream="other", **timeout)

    def draw() -> None:
        assert is_whole(buffer.sample(3, **timeout), view)

    def change() -> None:
        ids = rng.integers(max(0, x - 24), x + 1, 4)
        if buffer.sampler.prioritized:
            buffer.update_priorities(ids, rng.random(4))
        buffer.update(ids[:2], task=np.array([5, 6]))
        buffer.delete(ids[2:3])

    def end() -> None:
        buffer.end_episode(stream="other", terminated=True)

    calls = [add, add, extend, draw, draw, change, end, lambda: buffer.save(tmp_path / "s")]
    for _ in range(4):
        struck(extend, -1)
    for _ in range(CALLS):
        if struck(calls[rng.integers(len(calls))], int(rng.integers(1, 250))):
            for then in (draw, add, draw, extend):
                struck(then, -1)
    for _ in range(9):
        struck(extend, -1)
        struck(draw, -1)
    assert buffer.stats().size == len(buffer)
    assert limited or len(buffer) > 0
    buffer.save(tmp_path / "s")
    loaded = ReplayBuffer.from_checkpoint(tmp_path / "s")
    assert len(loaded) == len(buffer)
    loaded.close()
    buffer.close()
