"""Row 12: close() under load, and what it leaves behind. Measures no throughput."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads
from benchmarks.measure import held, read

BATCH = workloads.JOBS_PER_BATCH
SETTLE_S = 0.5

Make = Callable[[Callable[[int], Any]], Any]


def ours(function: Callable[[int], Any]) -> Any:
    from async_loader import AsyncDataLoader

    return AsyncDataLoader(
        workloads.job_source(function), BATCH, "cpu", chunk_size=16, num_workers=2
    )


def ding(function: Callable[[int], Any]) -> Any:
    from ding.utils.data import AsyncDataLoader

    return AsyncDataLoader(
        workloads.job_source(function), BATCH, "cpu", chunk_size=16, num_workers=2
    )


def close(seconds: float, make: Make, full: bool) -> Figures:
    """close() while every queue is full, or while the workers are in the middle of jobs that
    hold the GIL for 10 ms each.
    """
    make(workloads.load).close()  # so that imports and one-time threads do not count as left behind
    time.sleep(SETTLE_S)
    before = held()
    loader = make(workloads.load if full else workloads.load_slowly)
    for _ in range(3 if full else 1):
        read(next(loader))
    if full:
        time.sleep(SETTLE_S)
    begin = time.perf_counter()
    loader.close()
    close_s = time.perf_counter() - begin
    left = _more_than(before)
    del loader
    figures = {"close_s": close_s, "left": _total(left), "left_dropped": _total(_more_than(before))}
    return {**figures, **{f"left_{what}": more for what, more in left.items()}}


def _more_than(before: dict[str, int]) -> dict[str, int]:
    now = held()
    return {what: now[what] - before[what] for what in before}


def _total(left: dict[str, int]) -> int:
    return sum(max(0, more) for more in left.values())


STATES = {"queues full": True, "workers busy": False}
OURS = [f"async_loader, {state}" for state in STATES]
DING = [f"DI-engine, {state}" for state in STATES]

ROW = Row(
    "12",
    "close() under load, 2 workers",
    (
        Metric("close_s", "close() s", digits=3),
        Metric("left", "left after close()", digits=0),
        Metric("left_processes", "processes", digits=0),
        Metric("left_threads", "threads", digits=0),
        Metric("left_fds", "fds", digits=0),
        Metric("left_segments", "segments", digits=0),
        Metric("left_dropped", "left once dropped", digits=0),
        Metric("left_after_exit", "after exit", digits=0),
    ),
    tuple(
        Contender(
            f"{library}, {state}",
            environment,
            partial(close, make=make, full=full),
            f"async_loader, {state}",
        )
        for library, environment, make in (
            ("async_loader", "project", ours),
            ("DI-engine", "ding", ding),
        )
        for state, full in STATES.items()
    ),
    (
        *(Target(f"close() <= 1 s, {name.split(', ')[1]}", "close_s", 1, name) for name in OURS),
        *(
            Target(f"nothing left after close(), {name.split(', ')[1]}", "left", 0, name)
            for name in OURS
        ),
        *(
            Target(f"nothing left after exit, {name.split(', ')[1]}", "left_after_exit", 0, name)
            for name in OURS
        ),
        *(
            Target(f"close(), {state}: not slower than DI-engine", "close_s", 1.0, name, (peer,))
            for state, name, peer in zip(STATES, OURS, DING, strict=True)
        ),
    ),
    repeats=2,
)
