"""Row 1: callable jobs.

Each decodes a compressed frame of 4x84x84; 64 make a batch. Reads no result of another row.
"""

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads
from benchmarks.measure import time_batches

BATCH = workloads.JOBS_PER_BATCH


def _rate(take: Callable[[], Any], seconds: float) -> Figures:
    workloads.check_frames(take())
    wall_s, cpu_s = time_batches(take, seconds)
    return {"samples_per_s": BATCH / wall_s, "cpu_us": cpu_s / BATCH * 1e6}


def ours(seconds: float, workers: int, chunk: int | None = None) -> Figures:
    from async_loader import AsyncDataLoader

    source = workloads.job_source(workloads.load)
    with AsyncDataLoader(source, BATCH, "cpu", chunk_size=chunk, num_workers=workers) as loader:
        return _rate(loader.__next__, seconds)


def torch_loader(seconds: float, workers: int) -> Figures:
    from torch.utils.data import DataLoader

    dataset = workloads.FrameDataset()
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return _rate(iter(loader).__next__, seconds)


def ding(
    seconds: float,
    workers: int,
    chunk: int | None = None,
    function: Callable[[int], Any] = workloads.load,
) -> Figures:
    from ding.utils.data import AsyncDataLoader

    loader = AsyncDataLoader(
        workloads.job_source(function), BATCH, "cpu", chunk_size=chunk, num_workers=workers
    )
    try:
        return _rate(loader.__next__, seconds)
    finally:
        loader.close()


def limit(seconds: float, processes: int) -> Figures:
    """Only the decoding, into one array per process that stays warm:
    what no loader on this machine can pass.
    """
    context = multiprocessing.get_context("fork")
    counts = context.SimpleQueue()
    children = [context.Process(target=_decode, args=(seconds, counts)) for _ in range(processes)]
    for child in children:
        child.start()
    done = [counts.get() for _ in children]
    for child in children:
        child.join()
    return {
        "samples_per_s": sum(rate for rate, _ in done),
        "cpu_us": sum(cpu_us for _, cpu_us in done) / processes,
    }


def _decode(seconds: float, counts: Any) -> None:
    import numpy as np

    batch = np.ones((BATCH, *workloads.FRAME), np.uint8)
    done, cpu, start = 0, time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        for row in range(BATCH):
            batch[row] = workloads.load((done + row) % workloads.FRAMES)[0]
        done += BATCH
    counts.put((done / (now - start), (time.process_time() - cpu) / done * 1e6))


TORCH = ("torch DataLoader, 2 workers", "torch DataLoader, 0 workers")
DING_2 = (
    "DI-engine, 2 workers, chunk 64",
    "DI-engine, 2 workers, chunk 16",
    "DI-engine, 2 workers, chunk 16, tensors",
)
DING_0 = "DI-engine, 0 workers"
OURS = "async_loader, 2 workers"
LIMIT = "limit: decoding alone, 2 processes"

ROW = Row(
    "1",
    "callable jobs: zlib frame 4x84x84, batch 64",
    (
        Metric("samples_per_s", "samples/s", "higher", digits=0),
        Metric("cpu_us", "CPU us a sample, all processes"),
    ),
    (
        Contender(OURS, "project", partial(ours, workers=2)),
        Contender(
            "async_loader, 2 workers, chunk 8",
            "project",
            partial(ours, workers=2, chunk=8),
            once=True,
        ),
        Contender(
            "async_loader, 2 workers, chunk 64",
            "project",
            partial(ours, workers=2, chunk=64),
            once=True,
        ),
        Contender("async_loader, 0 workers", "project", partial(ours, workers=0), once=True),
        Contender(TORCH[0], "project", partial(torch_loader, workers=2)),
        Contender(TORCH[1], "project", partial(torch_loader, workers=0), once=True),
        Contender(DING_0, "ding", partial(ding, workers=0)),
        Contender(DING_2[0], "ding", partial(ding, workers=2, chunk=64)),
        Contender(DING_2[1], "ding", partial(ding, workers=2, chunk=16)),
        Contender(
            DING_2[2], "ding", partial(ding, workers=2, chunk=16, function=workloads.load_tensors)
        ),
        Contender(LIMIT, "project", partial(limit, processes=2)),
    ),
    (
        Target(">= 2.5x torch DataLoader with 2 workers", "samples_per_s", 2.5, OURS, TORCH[:1]),
        Target(">= 0.75 of decoding alone in 2 processes", "samples_per_s", 0.75, OURS, (LIMIT,)),
        Target("<= 26 us of CPU a sample, all processes", "cpu_us", 26, OURS),
        Target(
            ">= 20x DI-engine with 2 workers (chunk 16, tensors)",
            "samples_per_s",
            20,
            OURS,
            DING_2[2:],
        ),
        Target(
            ">= 20x DI-engine with 2 workers (chunk 16, arrays)",
            "samples_per_s",
            20,
            OURS,
            DING_2[1:2],
        ),
        Target(
            ">= 20x DI-engine with 2 workers (chunk 64, arrays)",
            "samples_per_s",
            20,
            OURS,
            DING_2[:1],
        ),
        Target(">= 6x DI-engine's best setting", "samples_per_s", 6, OURS, (DING_0, *DING_2)),
    ),
    seconds=1.2,
)
