"""Row 11: next() when batches are ready,
and what the loader costs a learner that keeps the GIL busy. No throughput here.

A learner is slowed by its own process's threads, and by the workers, which take a core's time,
caches and clock as any busy process does. So the same learner also runs beside processes without
any loader that are as busy as the workers were: its slowdown is the control.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads
from benchmarks.measure import percentile, read, warm_up

WORK_S = 0.010
STEPS = 50
IDLE_STEPS = 80
ROWS = 100_000
BATCH = 256

Make = Callable[[], Any]


def _spin(rounds: int) -> float:
    """Pure Python that never releases the GIL by itself; return its duration."""
    start, total = time.perf_counter(), 0
    for i in range(rounds):
        total += i & 3
    return time.perf_counter() - start


def _timed(take: Callable[[], Any]) -> float:
    start = time.perf_counter()
    batch = take()
    took = time.perf_counter() - start
    read(batch)
    return took


def _timed_after_sleep(take: Callable[[], Any]) -> float:
    time.sleep(WORK_S)
    return _timed(take)


def _other_threads_s() -> float:
    """CPU time of this process outside of this thread: what the loader takes here,
    which no neighbour can hide.
    """
    return time.process_time() - time.thread_time()


@contextmanager
def _running(make: Make) -> Iterator[Callable[[], Any]]:
    """Return the next() of a new loader whose queues have been filled once."""
    with closing(make()) as loader:
        warm_up(loader.__next__)
        time.sleep(0.1)
        yield loader.__next__


BUSY = """
import os, select, sys, time, zlib
share, period_s = float(sys.argv[1]), float(sys.argv[2])
frame = zlib.compress(os.urandom(14112) + bytes(14112))
while True:
    begin, end = time.process_time(), time.perf_counter() + period_s
    while time.process_time() - begin < share * period_s:
        zlib.decompress(frame)
    rest = max(0.0, end - time.perf_counter())
    if select.select([sys.stdin], [], [], rest)[0]:  # the other end was closed
        break
"""


def _children() -> dict[int, float]:
    """CPU seconds so far of each child process."""
    import psutil

    found = {}
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        found[child.pid] = times.user + times.system
    return found


@contextmanager
def _as_busy(shares: list[float]) -> Iterator[None]:
    """Run processes that take these shares of a core, in decompression."""
    run = [sys.executable, "-c", BUSY]
    busy = [
        subprocess.Popen([*run, str(share), str(WORK_S)], stdin=subprocess.PIPE) for share in shares
    ]
    try:
        time.sleep(0.1)
        yield
    finally:
        for one in busy:
            assert one.stdin is not None
            one.stdin.close()
            one.wait(10)


def next_beside_a_learner(seconds: float, make: Make) -> Figures:
    """Blocks of STEPS learner steps with a loader, without any, and beside processes that are as
    busy as its workers, in turns; then steps of a learner that sleeps.
    """
    rounds = int(100_000 * WORK_S / median(_spin(100_000) for _ in range(9)))
    busy: list[float] = []
    slowdowns: list[float] = []
    beyond: list[float] = []
    others: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(slowdowns) < 3:
        beside = 0.0
        with _running(make) as take:
            cpu_s, workers, since = _other_threads_s(), _children(), time.perf_counter()
            for _ in range(STEPS):
                beside += _spin(rounds)
                busy.append(_timed(take))
            others.append((_other_threads_s() - cpu_s) / STEPS)
            took = time.perf_counter() - since
            shares = [(now - workers.get(pid, 0.0)) / took for pid, now in _children().items()]
        alone = sum(_spin(rounds) for _ in range(STEPS))
        with _as_busy([share for share in shares if share > 0]):
            control = sum(_spin(rounds) for _ in range(STEPS))
        slowdowns.append(beside / alone)
        beyond.append((beside - control) / alone)
    with _running(make) as take:
        idle = [_timed_after_sleep(take) for _ in range(IDLE_STEPS)]
    return {
        "idle_us": median(idle) * 1e6,
        "busy_us": median(busy) * 1e6,
        "busy_p99_ms": percentile(busy, 0.99) * 1e3,
        "slower_percent": (median(slowdowns) - 1) * 100,
        "beyond_percent": median(beyond) * 100,
        "threads_us": median(others) * 1e6,
        "steps": len(busy),
    }


def ours_buffer() -> Any:
    from async_loader import AsyncDataLoader, ReplayBuffer

    buffer = ReplayBuffer(capacity=ROWS, seed=0)
    buffer.extend(workloads.columns(ROWS))
    return AsyncDataLoader(buffer, BATCH, "cpu")


def ours_columns() -> Any:
    from async_loader import AsyncDataLoader

    return AsyncDataLoader(workloads.columns(ROWS), BATCH, "cpu", num_workers=2, seed=0)


def ours_jobs() -> Any:
    from async_loader import AsyncDataLoader

    return AsyncDataLoader(
        workloads.job_source(workloads.load), workloads.JOBS_PER_BATCH, "cpu", num_workers=2
    )


def ding_dicts() -> Any:
    from ding.utils.data import AsyncDataLoader

    return AsyncDataLoader(workloads.dict_source(_dicts()), BATCH, "cpu")


def ding_jobs() -> Any:
    from ding.utils.data import AsyncDataLoader

    jobs, batch = workloads.job_source(workloads.load), workloads.JOBS_PER_BATCH
    return AsyncDataLoader(jobs, batch, "cpu", chunk_size=batch, num_workers=2)


class TorchJobs:
    """torch's loader with a close() like the others'."""

    def __init__(self) -> None:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            workloads.FrameDataset(), workloads.JOBS_PER_BATCH, shuffle=True, num_workers=2
        )
        self._batches: Any = iter(loader)

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        self._batches._shutdown_workers()


_made: list[Any] = []


def _dicts() -> list[dict[str, Any]]:
    """Made once: a loader is built for every block."""
    if not _made:
        _made.extend(workloads.tensor_dicts(4096))
    return _made


OURS = {
    "async_loader, ReplayBuffer, 0 workers": ours_buffer,
    "async_loader, columns, 2 workers": ours_columns,
    "async_loader, jobs, 2 workers": ours_jobs,
}
BUFFER, _, JOBS = OURS
PEERS = {
    "torch DataLoader, jobs, 2 workers": ("project", TorchJobs, JOBS),
    "DI-engine, jobs, 2 workers": ("ding", ding_jobs, JOBS),
    "DI-engine, list of dicts, 0 workers": ("ding", ding_dicts, BUFFER),
}
BOUNDS = (
    ("next() <= 50 us, learner sleeping", "idle_us", 50),
    ("next() <= 50 us, learner busy", "busy_us", 50),
    ("p99 <= 2 ms, learner busy", "busy_p99_ms", 2),
    ("learner slowed by <= 3% beyond equally busy processes", "beyond_percent", 3),
)

ROW = Row(
    "11",
    "prefetched next(), steps of 10 ms, busy ones in pure Python",
    (
        Metric("idle_us", "us, learner sleeping", digits=0),
        Metric("busy_us", "us, learner busy", digits=0),
        Metric("busy_p99_ms", "p99 ms, learner busy", digits=2),
        Metric("slower_percent", "learner slowed by %", digits=1),
        Metric("beyond_percent", "% beyond equally busy processes", digits=1),
        Metric("threads_us", "CPU us a step of other threads", digits=0),
    ),
    (
        *(
            Contender(name, "project", partial(next_beside_a_learner, make=make), name)
            for name, make in OURS.items()
        ),
        *(
            Contender(
                name, environment, partial(next_beside_a_learner, make=make), against, once=True
            )
            for name, (environment, make, against) in PEERS.items()
        ),
    ),
    tuple(
        Target(f"{name.split(', ')[1]}: {text}", metric, bound, name)
        for name in OURS
        for text, metric, bound in BOUNDS
    ),
    seconds=3.5,
)
