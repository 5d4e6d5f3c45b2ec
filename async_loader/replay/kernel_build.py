"""Compiles the kernels of a table ahead of its first use, and every kernel, as the build of the
package does: ``python -m async_loader.replay.kernel_build``.

A kernel is compiled for the types of its first call. So this calls what users call, on small
tables.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import numpy as np

from async_loader.errors import Unsupported
from async_loader.replay.base.compiled import served_mark
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import (
    Balanced,
    Fifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    Uniform,
)
from async_loader.replay.views import Sequences

_MANY = 1 << 12
"""Items of a large batch, for which other kernels are called than for a small one."""
_CAPACITY, _STEPS = 64, 48
_warm = False


def is_warm() -> bool:
    """Return whether this process has called `warm`."""
    return _warm


def is_kept() -> bool:
    """Return whether some process has called `warm`, and its kernels are on disk."""
    mark = served_mark()
    return mark is not None and mark.exists()


def warm() -> None:
    """Compile the kernels that a served table calls, or load them; once for each process.

    Takes seconds if none is cached, during which a loop would not answer.
    """
    global _warm
    if _warm:
        return
    _use(sampler=Uniform())
    _use(sampler=Prioritized())
    _use(sampler=Prioritized(), view=Sequences(4, stride=2, bootstrap=1, boundary="pad"))
    _use(sampler=Fifo(), limiter=Queue(_CAPACITY), max_times_sampled=1)
    with contextlib.suppress(OSError):  # without the mark, the next process compiles early
        if (mark := served_mark()) is not None:
            mark.touch()
    _warm = True


def build() -> None:
    """Compile the kernels of served tables, and of tables in a process, but for those of compressed
    values.
    """
    warm()
    goals = Hindsight(lambda achieved, desired, info: np.zeros(len(achieved)))
    for sampler in (RankPrioritized(), Recency(9), Balanced("task"), MinHeap()):
        _use(sampler=sampler)
    _use(remover=MaxHeap())
    _use(view=goals)


def _use(**settings: Any) -> None:
    obs = {name: np.zeros((_STEPS, 99), np.float32) for name in ("achieved_goal", "desired_goal")}
    one = {name: np.zeros(99, np.float32) for name in obs}
    with ReplayBuffer(_CAPACITY, seed=0, **settings) as buffer:
        first = 1.0 if isinstance(settings.get("sampler"), Prioritized) else None
        for task in range(4):
            step = {"obs": one, "next_obs": one, "reward": 0.0, "task": task, "terminated": False}
            buffer.add(step, priority=first)
        steps = np.arange(_STEPS)
        ids = buffer.extend(
            obs=obs,
            next_obs=obs,
            reward=np.zeros(_STEPS, np.float32),
            task=steps % 3,
            terminated=steps % 8 == 7,
            stream=0,
        )
        buffer.sample(2)
        buffer.sample(_MANY if buffer.sampler.repeats else 4)
        buffer.source().draw_now(4)
        index = ids[-4:]
        buffer.get(index)
        buffer.update(index, reward=np.ones(len(index), np.float32), task=index % 2)
        with contextlib.suppress(Unsupported):  # samplers without priorities
            buffer.update_priorities(index, np.ones(len(index)))
        buffer.delete(index)
        with tempfile.TemporaryDirectory() as folder:
            buffer.save(folder)
            buffer.load(folder)
        buffer.clear()


if __name__ == "__main__":
    build()
