"""DI-engine's loader and the drop-in module's, over jobs that each make one item, and over lists of
dicts; the same but for the import.

An endless stream, so there are no epochs; and a row of its own making, for batches are dicts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.doors.workloads import Workload
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import time_batches

CHUNK = 16
METRICS = (
    Metric("samples_per_s", "samples/s", "higher", digits=0),
    Metric("cpu_us", "CPU us a sample, all processes"),
)


class Item:
    """One item as a dict, in the form of DI-engine's datasets."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, i: int) -> dict[str, Any]:
        import torch

        image, number = self.dataset[i]
        return {"image": torch.from_numpy(np.ascontiguousarray(image)), "number": int(number)}


def jobs(workload: Workload, batch_size: int) -> Callable[[int], list[Any]]:
    """Return a data_source of callables, over all items in a shuffled order."""
    item = Item(workload.dataset())
    order = np.random.default_rng(0).permutation(workload.items).tolist()
    at = iter(range(0, 1 << 40, batch_size))

    def source(n: int) -> list[Any]:
        start = next(at)
        return [partial(item, order[i % len(order)]) for i in range(start, start + n)]

    return source


def dicts(workload: Workload, batch_size: int) -> Callable[[int], list[Any]]:
    """Return a data_source of ready samples: a replay buffer in a list."""
    item = Item(workload.dataset())
    there = [item(i) for i in range(2048)]
    rng = np.random.default_rng(0)
    return lambda n: [there[i] for i in rng.integers(0, len(there), n)]


def measure(
    seconds: float,
    door: str,
    make: Callable[[Workload, int], Any],
    workload: Workload,
    workers: int,
) -> Figures:
    from importlib import import_module

    loader = import_module(door).AsyncDataLoader(
        make(workload, workload.batch),
        workload.batch,
        "cpu",
        chunk_size=CHUNK if workers else None,
        num_workers=workers,
    )
    try:
        batch = next(loader)
        workload.check(batch["image"], batch["number"])
        wall_s, cpu_s = time_batches(loader.__next__, seconds)
    finally:
        loader.close()
    return {"samples_per_s": workload.batch / wall_s, "cpu_us": cpu_s / workload.batch * 1e6}


def row(key: str, title: str, make: Any, workload: Workload, bounds: dict[int, float]) -> Row:
    """Return both sides with each number of workers,
    and the factor by which ours has to be faster.
    """
    contenders, targets = [], []
    for workers, bound in bounds.items():
        names = f"async_loader ding, {workers} workers", f"DI-engine, {workers} workers"
        for name, environment, door in zip(
            names, ("project", "ding"), ("async_loader.compat.ding", "ding.utils.data"), strict=True
        ):
            figure = partial(measure, door=door, make=make, workload=workload, workers=workers)
            contenders.append(Contender(name, environment, figure, names[0]))
        text = f"ding, {workers} workers: " + (
            f">= {bound:g}x DI-engine" if bound > 1 else "not slower than DI-engine"
        )
        targets.append(Target(text, "samples_per_s", bound, names[0], names[1:]))
    return Row(f"ding-{key}", f"ding: {title}", METRICS, tuple(contenders), tuple(targets), 1.2)
