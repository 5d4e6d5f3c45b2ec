"""The start: from the constructor to the first batch, two workers, forked.

Measures no steady state.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads

BATCH = workloads.JOBS_PER_BATCH

Make = Callable[[], Any]


def ours() -> Any:
    from async_loader import AsyncDataLoader

    return AsyncDataLoader(
        workloads.job_source(workloads.load),
        BATCH,
        "cpu",
        num_workers=2,
        multiprocessing_context="fork",
    )


def torch_loader() -> Any:
    from torch.utils.data import DataLoader

    return iter(
        DataLoader(
            workloads.FrameDataset(),
            BATCH,
            shuffle=True,
            num_workers=2,
            multiprocessing_context="fork",
        )
    )


def ding() -> Any:
    from ding.utils.data import AsyncDataLoader

    jobs = workloads.job_source(workloads.load)
    return AsyncDataLoader(jobs, BATCH, "cpu", chunk_size=BATCH, num_workers=2)


def first_batch(seconds: float, make: Make) -> Figures:
    """Less the work itself, the decoding of one batch.

    The libraries are imported by a loader that is not counted.
    """
    _end(_first(make)[1])
    begin = time.perf_counter()
    for i in range(BATCH):
        workloads.load(i)
    work_s = time.perf_counter() - begin
    took_s, loader = _first(make)
    _end(loader)
    return {"start_s": took_s - work_s}


def _first(make: Make) -> tuple[float, Any]:
    begin = time.perf_counter()
    loader = make()
    batch = next(loader)
    took_s = time.perf_counter() - begin
    workloads.check_frames(batch)
    return took_s, loader


def _end(loader: Any) -> None:
    """torch's iterators have no close(): dropping them ends their workers."""
    if hasattr(loader, "close"):
        loader.close()


ROW = Row(
    "start",
    "from the constructor to the first batch, less the work, 2 workers, fork",
    (Metric("start_s", "s", digits=3),),
    (
        Contender("async_loader", "project", partial(first_batch, make=ours)),
        Contender("torch DataLoader", "project", partial(first_batch, make=torch_loader)),
        Contender("DI-engine", "ding", partial(first_batch, make=ding)),
    ),
    (Target("<= 0.5 s", "start_s", 0.5, "async_loader"),),
    repeats=2,
)
