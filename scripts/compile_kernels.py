"""Compiles every kernel, as the build of the package does.

A kernel is compiled for the types of its first call. So this calls what users call, on small
tables: ``python scripts/compile_kernels.py``.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import numpy as np

from async_loader.errors import Unsupported
from async_loader.replay.base.row_format import PLACES
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.kernel_warmup import warm
from async_loader.replay.samplers import (
    Balanced,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    Sampler,
    Uniform,
)
from async_loader.replay.views import Sequences
from async_loader.schema import Field

_MANY = 1 << 12
"""Items of a large batch, for which other kernels are called than for a small one."""
_CAPACITY = 64
_OBS = 128
"""Numbers of an observation."""


def build() -> None:
    """Compile the kernels of served tables, and of tables in a process."""
    warm()
    sequences = Sequences(4, stride=2, bootstrap=1, boundary="pad")
    repeating: list[Sampler] = [Uniform(), Prioritized(), RankPrioritized(), Recency(9)]
    for sampler in (*repeating, Balanced("task")):
        _use(_MANY, sampler=sampler)
    each_once: list[Sampler] = [Uniform(replacement=False), Fifo(), Lifo(), MinHeap()]
    for sampler in each_once:
        _use(4, sampler=sampler)
    _use(4, remover=MaxHeap())
    _use(4, max_times_sampled=4)
    _use(4, sampler=Prioritized(), view=sequences)
    _use_hindsight()
    _use_compressed()


def _use(many: int, **settings: Any) -> None:
    with ReplayBuffer(_CAPACITY, seed=0, **settings) as buffer:
        first = 1.0 if isinstance(settings.get("sampler"), Prioritized) else None
        for value in range(4):
            obs = np.zeros(_OBS, np.float32)
            buffer.add(obs=obs, reward=0.0, task=value, terminated=False, priority=first)
        steps = np.arange(_CAPACITY)
        ids = buffer.extend(
            obs=np.zeros((_CAPACITY, _OBS), np.float32),
            reward=np.zeros(_CAPACITY, np.float32),
            task=steps % 3,
            terminated=steps % 8 == 7,
            stream=0,
        )
        buffer.sample(2)
        buffer.sample(many)
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


def _use_hindsight() -> None:
    goal = Field((3,), "float32", next="next_obs")
    schema = {"obs": {"achieved_goal": goal, "desired_goal": goal}, "reward": "float32"}
    view = Hindsight(lambda achieved, desired, info: np.zeros(len(achieved)))
    obs = {name: np.zeros((_CAPACITY, 3), np.float32) for name in schema["obs"]}
    with ReplayBuffer(_CAPACITY, schema, view=view, seed=0) as buffer:
        buffer.extend(obs=obs, reward=np.zeros(_CAPACITY, np.float32), stream=0)
        buffer.sample(4)


def _use_compressed() -> None:
    """As tables with compressed values do, whose library may not be there."""
    from async_loader.replay.kernels import compressed  # late: see compiled.py

    none, words = np.empty(0, np.int64), np.zeros(2, np.int64)
    place = words.ctypes.data
    compressed.retire_steps(np.zeros(PLACES, np.int64), 0, 0, np.zeros(4, np.int64))
    compressed.raise_floor(place, 0)
    compressed.put_values(place, 1, none, place, none, none)
    compressed.take_values(place, 1, place, none, none, place, none)
    compressed.copy_values(none, none, 0)


if __name__ == "__main__":
    build()
