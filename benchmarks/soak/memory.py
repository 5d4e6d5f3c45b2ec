"""Resident memory over 100,000 small batches, from a ReplayBuffer and from jobs. Times nothing."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader.workloads import columns
from benchmarks.measure import read

BATCHES = 100_000
SAMPLES = 200
SETTLED = 0.1
"""Share at the beginning that does not count: slots are touched, caches fill."""
MIB = 1 << 20


def small_job(i: int) -> tuple[np.ndarray, int]:
    return np.full(16, i, np.float32), i


def small_jobs(batch_size: int) -> list[Callable[[], Any]]:
    return [partial(small_job, i) for i in range(batch_size)]


def from_buffer() -> Any:
    from async_loader import AsyncDataLoader, ReplayBuffer

    buffer = ReplayBuffer(capacity=10_000, seed=0)
    buffer.extend(columns(10_000))
    return AsyncDataLoader(buffer, 32, "cpu")


def from_jobs() -> Any:
    from async_loader import AsyncDataLoader

    return AsyncDataLoader(small_jobs, 8, "cpu", num_workers=2)


def memory(seconds: float, make: Callable[[], Any], batches: int = BATCHES) -> Figures:
    """RSS of this process and of each worker, SAMPLES times;
    growth is the fitted line's over the part that has settled.

    `seconds` scales the number of batches: the row asks for one.
    """
    import psutil

    me, batches = psutil.Process(), int(batches * seconds)
    every, series = batches // SAMPLES, []
    begin = time.perf_counter()
    with make() as loader:
        read(next(loader))
        processes = [me, *me.children(recursive=True)]
        fds = me.num_fds()
        for taken in range(batches):
            if taken % every == 0:
                series.append([process.memory_info().rss / MIB for process in processes])
            read(next(loader))
        more_fds = me.num_fds() - fds
    took_s = time.perf_counter() - begin
    growth = [_growth(column) for column in zip(*series, strict=True)]
    return {
        "learner_mib": growth[0],
        "worker_mib": max(growth[1:], default=0.0),
        "bytes_per_batch": growth[0] * MIB / (batches * (1 - SETTLED)),
        "more_fds": more_fds,
        "batches_per_s": batches / took_s,
        "batches": batches,
        "rss_mib": [list(column) for column in zip(*series, strict=True)],
    }


def _growth(rss: tuple[float, ...]) -> float:
    """Return MiB on the least-squares line from the settled part to the end."""
    settled = np.asarray(rss[int(len(rss) * SETTLED) :])
    return float(np.polyfit(np.linspace(0, 1, len(settled)), settled, 1)[0])


NAMES = {
    "async_loader, ReplayBuffer, 0 workers": from_buffer,
    "async_loader, jobs, 2 workers": from_jobs,
}

ROW = Row(
    "memory",
    f"resident memory over {BATCHES:,} batches",
    (
        Metric("learner_mib", "learner grew by MiB", digits=2),
        Metric("worker_mib", "a worker grew by MiB", digits=2),
        Metric("bytes_per_batch", "learner, bytes a batch", digits=2),
        Metric("more_fds", "more fds", digits=0),
        Metric("batches_per_s", "batches/s", "higher", digits=0),
    ),
    tuple(
        Contender(name, "project", partial(memory, make=make), name) for name, make in NAMES.items()
    ),
    tuple(
        Target(f"{name.split(', ')[1]}: {who} grows by <= 2 MiB over the last 90%", metric, 2, name)
        for name in NAMES
        for who, metric in (("learner", "learner_mib"), ("worker", "worker_mib"))
    ),
    seconds=1.0,
    repeats=1,
)
