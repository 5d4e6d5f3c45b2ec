"""A learner's draws beside four writers: of the table that they write to, and of another.

Compares no libraries.

The writers load the machine alike in both, so what the learner loses between the two is what
sharing the table costs. That holds for processes. Threads of the learner's process also contend for
its GIL, and a lock that they share changes who gets that, so their figures say little of the table;
they are here because that is how small programs write.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import read
from benchmarks.replay import tables, workloads

WORK = workloads.Small(100_000)
BATCH = workloads.BATCH
WRITERS = 4
STEPS = 256
"""Number of different steps that a writer adds in turn before it checks whether to continue."""

BLOCK_S = 0.3
"""The three phases take turns in blocks of this,
so that neighbours on the machine disturb all of them.
"""

SETTLE_S = 0.1
START_LIMIT_S = 60.0
SHARED, OTHER = 0, 1

Writing = Callable[[int], AbstractContextManager[Callable[[], int]]]
"""Within it writers add to table SHARED or OTHER;
it gives what tells how many steps they have added.
"""


def threads(seconds: float) -> Figures:
    """Writers are threads of the learner's process."""
    both = tables.ours(WORK), tables.ours(WORK)
    steps = _steps()

    @contextmanager
    def writing(which: int) -> Iterator[Callable[[], int]]:
        end, added = threading.Event(), [0] * WRITERS

        def write(number: int) -> None:
            while not end.is_set():
                for step in steps:
                    both[which].add(step, stream=number)
                added[number] += STEPS

        with ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(write, number) for number in range(WRITERS)]
            try:
                yield lambda: sum(added)
            finally:
                end.set()
            for one in running:
                one.result()

    return _kept(both[SHARED], writing, seconds)


def processes(seconds: float) -> Figures:
    """Writers are processes; each has a handle for either table."""
    both = tables.ours(WORK), tables.ours(WORK)
    context = multiprocessing.get_context("spawn")
    which, go, ready = context.Value("i", SHARED), context.Event(), context.Semaphore(0)
    counts = [context.Value("q", 0, lock=False) for _ in range(WRITERS)]
    children = [
        context.Process(
            target=_write,
            args=([table.writer_handle() for table in both], which, go, ready, count),
            daemon=True,
        )
        for count in counts
    ]
    for child in children:
        child.start()
    for _ in children:
        if not ready.acquire(timeout=START_LIMIT_S):
            raise RuntimeError("a writer process did not start")

    @contextmanager
    def writing(to: int) -> Iterator[Callable[[], int]]:
        which.value = to
        go.set()
        try:
            yield lambda: sum(count.value for count in counts)
        finally:
            go.clear()
        if not all(child.is_alive() for child in children):
            raise RuntimeError("a writer process died")

    try:
        return _kept(both[SHARED], writing, seconds)
    finally:
        for child in children:
            child.kill()
            child.join()


def _write(handles: list[Any], which: Any, go: Any, ready: Any, count: Any) -> None:
    writers = [handle.open() for handle in handles]
    steps = _steps()
    for writer in writers:  # compilation, or loading of kernels, at the first step
        writer.append(steps[0])
        writer.flush(START_LIMIT_S)
    ready.release()
    while go.wait():
        writer = writers[which.value]
        for step in steps:
            writer.append(step)
        count.value += STEPS


def _steps() -> list[workloads.Columns]:
    return [{name: column[0] for name, column in step.items()} for step in WORK.vectors(1, STEPS)]


def _kept(buffer: Any, writing: Writing, seconds: float) -> Figures:
    names = ("shared", "other")
    drawn: dict[str, list[float]] = {name: [] for name in ("idle", *names)}
    written: dict[str, list[float]] = {name: [] for name in names}
    _draws_per_s(buffer)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(drawn["idle"]) < 3:
        drawn["idle"].append(_draws_per_s(buffer))
        for which, name in enumerate(names):
            with writing(which) as added:
                time.sleep(SETTLE_S)
                before, begin = added(), time.perf_counter()
                drawn[name].append(_draws_per_s(buffer))
                written[name].append((added() - before) / (time.perf_counter() - begin))
    if min(map(median, written.values())) == 0:
        raise RuntimeError("nothing was written, so nothing contended")
    return {
        "kept_percent": 100
        * median(
            shared / other for shared, other in zip(*(drawn[name] for name in names), strict=True)
        ),
        **{f"{name}_per_s": median(rates) for name, rates in drawn.items()},
        **{f"written_{name}_per_s": median(rates) for name, rates in written.items()},
    }


def _draws_per_s(buffer: Any) -> float:
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < BLOCK_S:
        read(buffer.sample(BATCH))
        count += 1
    return count / (now - start)


OURS = f"async_loader, {WRITERS} processes"

ROW = Row(
    "contended",
    f"draws of {BATCH} small transitions beside {WRITERS} writers",
    (
        Metric("kept_percent", "% kept, shared table", "higher"),
        Metric("shared_per_s", "draws/s, shared", "higher", digits=0),
        Metric("other_per_s", "draws/s, other", "higher", digits=0),
        Metric("idle_per_s", "draws/s, no writers", "higher", digits=0),
        Metric("written_shared_per_s", "steps/s, shared", "higher", digits=0),
        Metric("written_other_per_s", "steps/s, other", "higher", digits=0),
    ),
    (
        Contender(OURS, "project", processes),
        Contender(f"async_loader, {WRITERS} threads", "project", threads, once=True),
    ),
    (
        Target(
            ">= 70% of the rate beside the same writing into another table",
            "kept_percent",
            70,
            OURS,
        ),
    ),
    seconds=6,
)
