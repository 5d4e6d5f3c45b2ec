"""Draws of 256 small transitions whose next observation is that of the next step, stored once."""

from functools import partial

from benchmarks.harness import Contender, Figures, Row
from benchmarks.measure import time_draws
from benchmarks.replay import tables, workloads
from benchmarks.replay.uniform import DRAW_METRICS

WORK = workloads.Small(200_000)
BATCH = workloads.BATCH


def ours(seconds: float) -> Figures:
    buffer = tables.ours_linked(WORK)
    workloads.check_rows(buffer.sample(BATCH))
    return time_draws(lambda: buffer.sample(BATCH), seconds)


def stored_twice(seconds: float) -> Figures:
    return time_draws(partial(tables.ours(WORK).sample, BATCH), seconds)


def cpprb(seconds: float) -> Figures:
    buffer = tables.cpprb(WORK, next_of="obs")
    workloads.check_rows(buffer.sample(BATCH))
    return time_draws(lambda: buffer.sample(BATCH), seconds)


def sb3(seconds: float) -> Figures:
    return time_draws(tables.sb3_take(tables.sb3(WORK, optimize_memory_usage=True), BATCH), seconds)


ROW = Row(
    "linked",
    f"uniform, {BATCH} small transitions of {WORK.rows:,}, next_obs stored once",
    DRAW_METRICS,
    (
        Contender("async_loader, linked next_obs", "project", ours),
        Contender("async_loader, stored twice", "project", stored_twice),
        Contender("cpprb, next_of", "replay-peers", cpprb),
        Contender("stable-baselines3, optimized memory", "replay-peers", sb3),
    ),
)
