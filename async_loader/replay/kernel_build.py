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
from async_loader.replay.base.row_format import FINAL, TRUNCATED
from async_loader.replay.buffer import ReplayBuffer, shared_table
from async_loader.replay.hindsight_view import Hindsight
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
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.replay.views import Sequences, Transitions, View
from async_loader.schema import Field

_MANY = 1 << 12
"""Items of a large batch, for which other kernels are called than for a small one."""
_CAPACITY = 64
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
    schema = {
        "x": Field((), np.dtype(np.float32), next="y"),
        "big": ((1 << 10,), np.float32),
        "reward": np.float32,
    }
    plain = {"x": np.float32}
    _serve(plain, Uniform())
    _serve(schema, Prioritized(0.5), other=Transitions(n_steps=2, gamma=0.9))
    _serve(plain, Fifo(), times=1)
    ends = {**schema, "terminated": np.bool_}
    _serve(ends, Prioritized(0.5), view=Sequences(2, boundary="pad"))
    with contextlib.suppress(OSError):  # without the mark, the next process compiles early
        if (mark := served_mark()) is not None:
            mark.touch()
    _warm = True


def _serve(
    schema: dict[str, Any],
    sampler: Sampler,
    view: View | None = None,
    other: View | None = None,
    times: int = 0,
) -> None:
    """Insert and draw as a server does; by another view too, if one is given."""
    with ReplayBuffer(
        16, schema, sampler=sampler, view=view, max_times_sampled=times, seed=0
    ) as buffer:
        table = NonblockingTable(shared_table(buffer))
        assert table.schema is not None
        columns = [np.zeros((4, *field.shape), field.dtype) for field in table.schema.fields]
        given = np.full(4, np.nan if view is None else 1.0)
        for flags in (np.array([0, 0, TRUNCATED, FINAL]), np.zeros(4, np.int64)):
            table.insert(Incoming(np.full(4, table.stream(0)), flags, given, columns), 0)
        table.end([0])
        for one in {None, other}:
            drawing = table.drawing(one, 0, 1, None)
            drawing.why_not(2)
            drawing.arrays(2)
            if sampler.repeats:
                drawing.arrays(_MANY)
            drawing.close()
        if sampler.prioritized:
            table.prioritize(np.zeros(1, np.int64), np.ones(1))


def build() -> None:
    """Compile the kernels of served tables, and of tables in a process, but for those of compressed
    values.
    """
    warm()
    sequences = Sequences(4, stride=2, bootstrap=1, boundary="pad")
    goals = Hindsight(lambda achieved, desired, info: np.zeros(len(achieved)))
    samplers: tuple[Sampler, ...] = (
        Uniform(), Prioritized(), RankPrioritized(), Recency(9), Balanced("task"),
        Uniform(replacement=False), Fifo(), Lifo(), MinHeap(),
    )  # fmt: skip
    for sampler in samplers:
        _use(sampler=sampler)
    _use(remover=MaxHeap())
    _use(max_times_sampled=4, sampler=Fifo())
    _use(sampler=Prioritized(), view=sequences)
    _use(view=goals)


def _use(**settings: Any) -> None:
    obs = {name: np.zeros((_CAPACITY, 9), np.float32) for name in ("achieved_goal", "desired_goal")}
    one = {name: np.zeros(9, np.float32) for name in obs}
    with ReplayBuffer(_CAPACITY, seed=0, **settings) as buffer:
        first = 1.0 if isinstance(settings.get("sampler"), Prioritized) else None
        for task in range(4):
            step = {"obs": one, "next_obs": one, "reward": 0.0, "task": task, "terminated": False}
            buffer.add(step, priority=first)
        steps = np.arange(_CAPACITY)
        ids = buffer.extend(
            obs=obs,
            next_obs=obs,
            reward=np.zeros(_CAPACITY, np.float32),
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
