"""Callable jobs whose batches end in the accelerator's memory: 64 compressed frames of 4x84x84, by
8 worker processes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu.timing import DEVICE, read, time_steps
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.loader import workloads

BATCH = workloads.JOBS_PER_BATCH
WORKERS = 8


def _rate(take: Callable[[], Any], seconds: float) -> Figures:
    workloads.check_frames([field.cpu() for field in take()])
    figures = time_steps(lambda: read(take()), seconds)
    return {"samples_per_s": BATCH / figures["us"] * 1e6, "cpu_us": figures["cpu_us"] / BATCH}


def ours(seconds: float) -> Figures:
    from async_loader import AsyncDataLoader

    source = workloads.job_source(workloads.load)
    with AsyncDataLoader(source, BATCH, DEVICE, num_workers=WORKERS) as loader:
        return _rate(loader.__next__, seconds)


def torch_loader(seconds: float) -> Figures:
    from torch.utils.data import DataLoader

    batches = iter(
        DataLoader(
            workloads.FrameDataset(),
            BATCH,
            shuffle=True,
            num_workers=WORKERS,
            persistent_workers=True,
            pin_memory=DEVICE == "cuda",
            prefetch_factor=4,
        )
    )
    return _rate(lambda: [field.to(DEVICE, non_blocking=True) for field in next(batches)], seconds)


OURS, TORCH = f"async_loader, {WORKERS} workers", f"torch DataLoader, {WORKERS} workers, pin_memory"

ROW = Row(
    "jobs",
    f"callable jobs: zlib frame 4x84x84, batch {BATCH}, in the accelerator's memory",
    (
        Metric("samples_per_s", "samples/s", "higher", digits=0),
        Metric("cpu_us", "CPU us a sample, all processes"),
    ),
    (
        Contender(OURS, "project", partial(ours)),
        Contender(TORCH, "project", partial(torch_loader)),
    ),
    (Target("faster than torch's DataLoader", "samples_per_s", 1.0, OURS, (TORCH,)),),
    seconds=1.5,
)
