"""A learner asks a server's table for a batch when it wants one: one message there, one back,
nothing drawn ahead.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.feeder import ours
from benchmarks.feeder.sampling import project
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Figures, Metric, Row, Target
from benchmarks.measure import cpu_s, warm_up
from benchmarks.replay.workloads import BATCH

WORK = Work("small")
OURS = "async_loader, shm"
BEYOND_US = 250


def sampled(seconds: float, work: Work, transport: str) -> Figures:
    """The same table here and in a server's process, drawn from in turn: medians of both,
    and what is between them.
    """
    from async_loader.feeder import connect

    buffer = ours.table(work)
    for chunk in work.chunks():
        buffer.extend(chunk, stream=0)
    with ours.serving(work, transport) as (server, address):
        ours.fill(address, work)
        with connect(address) as client:
            table = client.table(ours.TABLE)
            work.check(table.sample(BATCH))
            work.check(buffer.sample(BATCH))
            before, count = server.cpu_s(), 0

            def there() -> Any:
                nonlocal count
                count += 1
                return table.sample(BATCH)

            figures = _in_turn(there, partial(buffer.sample, BATCH), seconds)
            figures["server_us"] = (server.cpu_s() - before) / count * 1e6
            return figures


def _in_turn(there: Callable[[], Any], here: Callable[[], Any], seconds: float) -> Figures:
    warm_up(there)
    warm_up(here)
    took: tuple[list[float], list[float]] = ([], [])
    cpu, start = cpu_s(), time.perf_counter()
    while (begin := time.perf_counter()) - start < seconds:
        there()
        between = time.perf_counter()
        here()
        took[0].append(between - begin)
        took[1].append(time.perf_counter() - between)
    us, here_us = (median(one) * 1e6 for one in took)
    return {
        "beyond_us": us - here_us,
        "us": us,
        "here_us": here_us,
        "cpu_us": (cpu_s() - cpu) / len(took[0]) * 1e6,
    }


ROW = Row(
    "sample",
    f"service: sample({BATCH}) of small transitions, drawn when asked for",
    (
        Metric("beyond_us", "us beyond the draw of a table in the learner's process"),
        Metric("us", "us a call, median"),
        Metric("here_us", "us of the draw here, median"),
        Metric("cpu_us", "CPU us of both, the learner's process"),
        Metric("server_us", "the server's"),
    ),
    (
        project(OURS, sampled, work=WORK, transport="ipc"),
        project("async_loader, tcp", sampled, once=True, work=WORK, transport="tcp"),
    ),
    (
        Target(
            f"at most {BEYOND_US} us beyond the draw in the learner's process",
            "beyond_us",
            BEYOND_US,
            OURS,
        ),
    ),
)
