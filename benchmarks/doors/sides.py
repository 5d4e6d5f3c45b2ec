"""A drop-in module and its original as contenders of a row: how both are made,
measured and compared.

Knows no library.

A door's file names how its loaders are made (`Side`), and asks `row` for each workload.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.doors.workloads import Workload
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import cpu_s, read

LEAST_EPOCHS = 4
"""Number of epochs; the first is for warming up."""


@dataclass(frozen=True)
class Setting:
    """Kind and number of workers: ``kind`` is an argument of a side's `make`;
    "processes" and "threads" are left out of the name.
    """

    name: str
    workers: int
    kind: str = "processes"


NO_WORKERS = Setting("0 workers", 0)
PROCESSES = Setting("2 workers", 2)
THREADS = Setting("2 threads", 2, "threads")

Make = Callable[[Workload, Setting], Iterable[Any]]
"""Returns a loader: each iteration is one epoch, shuffled again.

Called in the side's own environment.
"""


@dataclass(frozen=True)
class Side:
    """One library: its environment, how its loaders are made,
    and what the two fields of a batch are.
    """

    environment: str
    make: Make
    fields: Callable[[Any], tuple[Any, Any]] = lambda batch: (batch[0], batch[1])


METRICS = (
    Metric("samples_per_s", "samples/s", "higher", digits=0),
    Metric("first_ms", "ms to an epoch's first batch", digits=2),
    Metric("cpu_us", "CPU us a sample, all processes"),
)


def measure(seconds: float, side: Side, workload: Workload, setting: Setting) -> Figures:
    """Run whole epochs for about ``seconds``, after one that is not timed."""
    loader = side.make(workload, setting)
    workload.check(*side.fields(next(iter(loader))))
    for batch in loader:
        read(batch)
    epochs, samples, firsts = 0, 0, []
    cpu, start = cpu_s(), time.perf_counter()
    while epochs < LEAST_EPOCHS - 1 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        for batch in loader:
            if begin:
                firsts.append(time.perf_counter() - begin)
                begin = 0.0
            read(batch)
        epochs, samples = epochs + 1, samples + workload.items
    wall_s, cpu = time.perf_counter() - start, cpu_s() - cpu
    return {
        "samples_per_s": samples / wall_s,
        "first_ms": median(firsts) * 1e3,
        "cpu_us": cpu / samples * 1e6,
        "epochs": epochs,
    }


def row(
    door: str,
    original: str,
    workload: Workload,
    ours: Side,
    theirs: Side,
    settings: tuple[Setting, ...] = (NO_WORKERS, PROCESSES, THREADS),
    *,
    best: tuple[Setting, float] | None = None,
    more: tuple[tuple[Setting, float], ...] = (),
    epoch_start: Setting | None = PROCESSES,
    seconds: float = 1.2,
) -> Row:
    """Every setting of ours beside the same setting of theirs; none may be slower.

    ``best``: our setting, and how many times faster than their best setting it has to be. ``more``:
    the same against their same setting. ``epoch_start``: our setting that has to begin an epoch
    within 5 ms.
    """
    names = {
        setting: (f"async_loader {door}, {setting.name}", f"{original}, {setting.name}")
        for setting in settings
    }
    contenders = [
        Contender(
            name,
            side.environment,
            partial(measure, side=side, workload=workload, setting=setting),
            names[setting][0],
        )
        for setting in settings
        for name, side in zip(names[setting], (ours, theirs), strict=True)
    ]
    targets = []
    if best:
        text = f"{door}: >= {best[1]:g}x {original}'s best"
        targets.append(
            Target(
                text,
                "samples_per_s",
                best[1],
                names[best[0]][0],
                tuple(pair[1] for pair in names.values()),
            )
        )
    bounds = {**dict.fromkeys(settings, 1.0), **dict(more)}
    for setting, bound in bounds.items():
        text = f"{door}, {setting.name}: " + (
            f">= {bound:g}x {original}" if bound > 1 else f"not slower than {original}"
        )
        targets.append(Target(text, "samples_per_s", bound, names[setting][0], names[setting][1:]))
    if epoch_start:
        text = f"{door}, {epoch_start.name}: later epochs begin in <= 5 ms"
        targets.append(Target(text, "first_ms", 5, names[epoch_start][0]))
    return Row(
        f"{door}-{workload.key}",
        f"{door}: {workload.title}",
        METRICS,
        tuple(contenders),
        tuple(targets),
        seconds,
    )
