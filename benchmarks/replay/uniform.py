"""Uniform draws of small transitions, by batch size: what rows 4 and 5 have in common.

Sets no target.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import time_draws
from benchmarks.replay import tables, workloads

WORK = workloads.Small(1_000_000)
DRAW_METRICS = (
    Metric("us", "us a batch, drawn and read"),
    Metric("draw_us", "us, drawn only"),
    Metric("cpu_us", "CPU us a batch"),
)
OURS, CPPRB = "async_loader", "cpprb"


def ours(seconds: float, batch: int) -> Figures:
    buffer = tables.ours(WORK)
    workloads.check_rows(buffer.sample(batch))
    return time_draws(lambda: buffer.sample(batch), seconds)


def cpprb(seconds: float, batch: int) -> Figures:
    buffer = tables.cpprb(WORK)
    workloads.check_rows(buffer.sample(batch))
    return time_draws(lambda: buffer.sample(batch), seconds)


def torchrl(seconds: float, batch: int, prefetch: int | None = None) -> Figures:
    buffer = tables.torchrl(WORK, batch, prefetch)
    workloads.check_rows(buffer.sample())
    return time_draws(tables.torchrl_take(buffer), seconds)


def sb3(seconds: float, batch: int) -> Figures:
    buffer = tables.sb3(WORK)
    drawn = buffer.sample(batch)
    workloads.check_rows({"obs": drawn.observations, "next_obs": drawn.next_observations})
    return time_draws(tables.sb3_take(buffer, batch), seconds)


def rlox(seconds: float, batch: int) -> Figures:
    buffer = tables.rlox(WORK)
    workloads.check_rows(buffer.sample(batch, 0))
    return time_draws(tables.rlox_take(buffer, batch), seconds)


def row(key: str, batch: int, target: Target) -> Row:
    def contender(
        name: str,
        environment: str,
        measure: Callable[..., Figures],
        once: bool = False,
        **options: Any,
    ) -> Contender:
        return Contender(name, environment, partial(measure, batch=batch, **options), once=once)

    return Row(
        key,
        f"uniform, {batch} small transitions of {WORK.rows:,}",
        DRAW_METRICS,
        (
            contender(OURS, "project", ours),
            contender(CPPRB, "replay-peers", cpprb),
            contender("torchrl", "replay-peers", torchrl),
            contender("torchrl, prefetch 4", "replay-peers", torchrl, once=True, prefetch=4),
            contender("stable-baselines3", "replay-peers", sb3),
            contender("rlox", "rlox", rlox),
        ),
        (target,),
    )
