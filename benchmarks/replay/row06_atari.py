"""Row 6: uniform draws of 256 transitions of two stacks of four frames: stored as such,
and linked frames.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Row, Target
from benchmarks.measure import time_draws
from benchmarks.replay import tables, workloads
from benchmarks.replay.uniform import DRAW_METRICS

WORK = workloads.Atari()
BATCH = workloads.BATCH


def _time(take: Callable[[], Any], seconds: float) -> Figures:
    batch = take()
    workloads.check_stacks(batch["obs"], batch["next_obs"], batch["terminated"])
    return time_draws(take, seconds)


def ours(seconds: float) -> Figures:
    return _time(partial(tables.ours(WORK).sample, BATCH), seconds)


def ours_linked(seconds: float) -> Figures:
    from async_loader import Transitions

    buffer, view = tables.ours_linked(WORK), Transitions()
    return _time(lambda: buffer.sample(BATCH, view=view), seconds)


def limit(seconds: float) -> Figures:
    """Only the gathering, by indices drawn beforehand, into memory that stays warm."""
    import torch

    stored = [
        torch.empty((WORK.rows, *shape), dtype=torch.uint8)
        for shape, _ in (WORK.fields["obs"], WORK.fields["next_obs"])
    ]
    done = 0
    for chunk in WORK.chunks():
        for column, name in zip(stored, ("obs", "next_obs"), strict=True):
            column[done : done + len(chunk[name])] = torch.from_numpy(chunk[name].copy())
        done += len(chunk["obs"])
    warm = [torch.ones((BATCH, *column.shape[1:]), dtype=torch.uint8) for column in stored]
    indices = iter_for_ever([torch.randint(WORK.rows, (BATCH,)) for _ in range(64)])

    def take() -> Any:
        index = next(indices)
        for column, out in zip(stored, warm, strict=True):
            torch.index_select(column, 0, index, out=out)
        return warm

    return time_draws(take, seconds)


def iter_for_ever(items: list[Any]) -> Any:
    while True:
        yield from items


def cpprb(seconds: float, compressed: bool) -> Figures:
    options = {"next_of": "obs", "stack_compress": "obs"} if compressed else {}
    buffer = tables.cpprb(WORK, **options)
    batch = buffer.sample(BATCH)
    obs, next_obs = (
        (np.moveaxis(batch[name], -1, 1) if compressed else batch[name])
        for name in ("obs", "next_obs")
    )
    workloads.check_stacks(obs, next_obs, batch["done"])
    return time_draws(lambda: buffer.sample(BATCH), seconds)


def torchrl(seconds: float) -> Figures:
    buffer = tables.torchrl(WORK, BATCH)
    batch = buffer.sample()
    workloads.check_stacks(batch["obs"], batch["next_obs"], batch["terminated"])
    return time_draws(tables.torchrl_take(buffer), seconds)


def sb3(seconds: float, optimize: bool) -> Figures:
    buffer = tables.sb3(WORK, optimize_memory_usage=optimize)
    batch = buffer.sample(BATCH)
    workloads.check_stacks(batch.observations, batch.next_observations, batch.dones)
    return time_draws(tables.sb3_take(buffer, BATCH), seconds)


OURS, LINKED = "async_loader, stored twice", "async_loader, linked frames"
LIMIT, CPPRB = "limit: torch.index_select, warm", "cpprb"

ROW = Row(
    "6",
    f"uniform, {BATCH} transitions of two 4x84x84 stacks, of {WORK.rows:,}",
    DRAW_METRICS,
    (
        Contender(OURS, "project", ours),
        Contender(LINKED, "project", ours_linked),
        Contender(LIMIT, "project", limit),
        Contender(CPPRB, "replay-peers", partial(cpprb, compressed=False)),
        Contender(
            "cpprb, next_of, stack_compress",
            "replay-peers",
            partial(cpprb, compressed=True),
            LINKED,
            once=True,
        ),
        Contender("torchrl", "replay-peers", torchrl),
        Contender("stable-baselines3", "replay-peers", partial(sb3, optimize=False)),
        Contender(
            "stable-baselines3, optimized memory",
            "replay-peers",
            partial(sb3, optimize=True),
            LINKED,
            once=True,
        ),
    ),
    (
        Target(
            "stored twice: >= 0.87x (time <= 1.15x) of one warm torch.index_select",
            "us",
            1 / 1.15,
            OURS,
            (LIMIT,),
        ),
        Target("linked frames: >= 2x cpprb", "us", 2, LINKED, (CPPRB,)),
    ),
)
