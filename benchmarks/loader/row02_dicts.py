"""Row 2: a data_source that returns a list of 256 dicts of tensors: 17+6+1+17 floats,
or two 4x84x84 stacks. No workers.

torch without workers stacks them in the learner's thread, so `next()` alone says half of it: beside
it runs a learner that works between batches, in kernels that release the GIL.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads
from benchmarks.measure import read, time_batches

WORK_S = 0.001
BATCH = workloads.DICTS_PER_BATCH
MAKE = {
    "small": partial(workloads.tensor_dicts, 4096),
    "Atari": partial(workloads.atari_dicts, 1024),
}


def _learner() -> Callable[[], None]:
    """An update that takes WORK_S of products of matrices, on one core as all learners here. One
    that takes both leaves none for what is collated beside: then each loader adds the same.
    """
    import torch

    matrix = torch.randn(256, 256)

    def products(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            torch.mm(matrix, matrix)
        return time.perf_counter() - start

    products(100)
    count = max(1, round(WORK_S / median(products(1) for _ in range(200))))

    def learn() -> None:
        products(count)

    return learn


def _time(take: Callable[[], Any], seconds: float) -> Figures:
    wall_s, cpu_s = time_batches(take, seconds)
    learn, steps, alone = _learner(), [], []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        read(take())
        learn()
        steps.append(time.perf_counter() - start)
    for _ in steps[:200]:
        start = time.perf_counter()
        learn()
        alone.append(time.perf_counter() - start)
    return {
        "ms": wall_s * 1e3,
        "cpu_ms": cpu_s * 1e3,
        "beside_ms": (median(steps) - median(alone)) * 1e3,
    }


def ours(seconds: float, kind: str) -> Figures:
    from async_loader import AsyncDataLoader

    with AsyncDataLoader(workloads.dict_source(MAKE[kind]()), BATCH, "cpu") as loader:
        return _time(loader.__next__, seconds)


def torch_loader(seconds: float, kind: str) -> Figures:
    from torch.utils.data import DataLoader

    return _time(
        iter(DataLoader(workloads.DictDataset(MAKE[kind]()), BATCH, shuffle=True)).__next__, seconds
    )


def ding(seconds: float, kind: str) -> Figures:
    from ding.utils.data import AsyncDataLoader

    loader = AsyncDataLoader(workloads.dict_source(MAKE[kind]()), BATCH, "cpu")
    try:
        return _time(loader.__next__, seconds)
    finally:
        loader.close()


ATARI = "async_loader, Atari"

ROW = Row(
    "2",
    "list of 256 dicts of tensors",
    (
        Metric("ms", "ms a batch", digits=2),
        Metric("cpu_ms", "CPU ms a batch, all processes", digits=2),
        Metric("beside_ms", "ms that it adds to a learner's step of 1 ms on one core", digits=2),
    ),
    (
        Contender("async_loader, small", "project", partial(ours, kind="small")),
        Contender("torch DataLoader, small", "project", partial(torch_loader, kind="small")),
        Contender("DI-engine, small", "ding", partial(ding, kind="small")),
        Contender(ATARI, "project", partial(ours, kind="Atari"), ATARI, once=True),
        Contender(
            "torch DataLoader, Atari",
            "project",
            partial(torch_loader, kind="Atari"),
            ATARI,
            once=True,
        ),
        Contender("DI-engine, Atari", "ding", partial(ding, kind="Atari"), ATARI, once=True),
    ),
    (
        Target(
            ">= 10x DI-engine, small dicts", "ms", 10, "async_loader, small", ("DI-engine, small",)
        ),
    ),
    seconds=1.0,
)
