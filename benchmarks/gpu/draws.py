"""Batches of a replay table in the accelerator's memory, each read there: what its two rows have in
common.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu import sides
from benchmarks.gpu.timing import Take, read, time_steps
from benchmarks.harness import Contender, Figures, Metric, Row, Target

METRICS = (
    Metric("us", "us a batch, arrived and read"),
    Metric("cpu_us", "CPU us a batch, all threads"),
)
SAMPLE = "async_loader, sample() and to()"
LIMITS = {
    "limit: a page-locked copy alone": sides.copy_alone,
    "limit: the table in the accelerator's memory": sides.resident,
}

Check = Callable[[Take], None]


def _measure(seconds: float, side: sides.Side, work: Any, batch: int, check: Check) -> Figures:
    with side(work, batch) as take:
        check(take)
        return time_steps(lambda: read(take()), seconds)


def row(
    key: str, title: str, work: Any, batch: int, ours: dict[str, sides.Side], check: Check
) -> Row:
    """``ours``: the settings of the loader, the one that comes first as it is by default."""

    def contenders(of: dict[str, sides.Side], environment: str) -> list[Contender]:
        return [
            Contender(
                name,
                environment,
                partial(_measure, side=side, work=work, batch=batch, check=check),
                once=name.startswith("limit"),
            )
            for name, side in of.items()
        ]

    return Row(
        key,
        title,
        METRICS,
        (
            *contenders(ours, "project"),
            *contenders({SAMPLE: sides.moved(sides.sample)}, "project"),
            *contenders(sides.PEERS | sides.RESIDENT, "replay-peers"),
            *contenders(LIMITS, "project"),
        ),
        (
            Target(
                "faster than every other library", "us", 1.0, next(iter(ours)), tuple(sides.PEERS)
            ),
        ),
        seconds=1.0,
    )
