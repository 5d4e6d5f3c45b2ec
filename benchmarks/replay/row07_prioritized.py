"""Row 7: a prioritized draw of 256 of a million small transitions,
and the update of their priorities.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Row, Target
from benchmarks.measure import time_draws
from benchmarks.replay import tables, workloads
from benchmarks.replay.uniform import DRAW_METRICS

WORK = workloads.Small(1_000_000)
BATCH = workloads.BATCH
ALPHA, BETA = 0.6, 0.4


def _priorities(n: int) -> np.ndarray:
    return np.random.default_rng(5).random(n) + 0.01


def _time(
    draw: Callable[[], tuple[Any, Any]], update: Callable[[Any, np.ndarray], Any], seconds: float
) -> Figures:
    """Drawing, reading and updating; the new priorities are made beforehand."""
    new = [_priorities(BATCH) for _ in range(64)]
    turn = 0

    def take() -> Any:
        nonlocal turn
        batch, index = draw()
        update(index, new[turn % 64])
        turn += 1
        return batch

    return time_draws(take, seconds)


def ours(seconds: float) -> Figures:
    from async_loader import Prioritized, ReplayBuffer

    buffer = ReplayBuffer(WORK.rows, WORK.fields, sampler=Prioritized(ALPHA, beta=BETA), seed=0)
    for chunk in WORK.chunks():
        buffer.extend(chunk, priority=_priorities(len(chunk["obs"])))

    def draw() -> tuple[Any, Any]:
        batch = buffer.sample(BATCH)
        return batch, batch["index"]

    return _time(draw, buffer.update_priorities, seconds)


def cpprb(seconds: float) -> Figures:
    from cpprb import PrioritizedReplayBuffer

    fields = tables.cpprb_fields(WORK)
    buffer = PrioritizedReplayBuffer(WORK.rows, fields, alpha=ALPHA)
    for chunk in WORK.chunks():
        buffer.add(**tables.for_cpprb(chunk), priorities=_priorities(len(chunk["obs"])))

    def draw() -> tuple[Any, Any]:
        batch = buffer.sample(BATCH, beta=BETA)
        return batch, batch["indexes"]

    return _time(draw, buffer.update_priorities, seconds)


def torchrl(seconds: float) -> Figures:
    from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

    sampler = PrioritizedSampler(WORK.rows, ALPHA, BETA)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(WORK.rows), sampler=sampler, batch_size=BATCH
    )
    for chunk in WORK.chunks():
        buffer.update_priority(
            buffer.extend(tables.for_torchrl(chunk)), _priorities(len(chunk["obs"]))
        )

    def draw() -> tuple[Any, Any]:
        batch = buffer.sample()
        return list(batch.values()), batch["index"]

    return _time(draw, buffer.update_priority, seconds)


def tianshou(seconds: float) -> Figures:
    buffer = tables.tianshou_prioritized(WORK, ALPHA, BETA, _priorities(WORK.rows))

    def draw() -> tuple[Any, Any]:
        batch, index = buffer.sample(BATCH)
        fields = [batch.obs, batch.act, batch.rew, batch.obs_next, batch.terminated, batch.weight]
        return fields, index

    return _time(draw, buffer.update_weight, seconds)


def rlox(seconds: float) -> Figures:
    """Its `push` takes one step at a time."""
    from rlox import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(WORK.rows, 17, 6, ALPHA, BETA)
    for chunk in WORK.chunks():
        columns = (chunk[name] for name in ("obs", "action", "reward", "terminated", "next_obs"))
        priorities = _priorities(len(chunk["obs"])).tolist()
        for row, one in zip(zip(*columns, strict=True), priorities, strict=True):
            obs, action, reward, over, after = row
            buffer.push(obs, action, float(reward), bool(over), False, after, priority=one)
    seeds = itertools.count()

    def draw() -> tuple[Any, Any]:
        batch = buffer.sample(BATCH, next(seeds))
        return list(batch.values()), batch["indices"]

    return _time(draw, buffer.update_priorities, seconds)


OURS = "async_loader"

ROW = Row(
    "7",
    f"prioritized draw of {BATCH} small transitions of {WORK.rows:,}, and their update",
    DRAW_METRICS,
    (
        Contender(OURS, "project", ours),
        Contender("cpprb", "replay-peers", cpprb),
        Contender("torchrl", "replay-peers", torchrl),
        Contender("tianshou", "tianshou", tianshou),
        Contender("rlox", "rlox", rlox),
    ),
    (Target("<= 100 us", "us", 100, OURS),),
)
