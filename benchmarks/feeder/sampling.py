"""A learner takes batches of a server's table: what the rows of it have in common.

Sets no target.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from benchmarks.feeder import ours, theirs
from benchmarks.feeder.processes import Child
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Contender, Figures, Metric
from benchmarks.measure import time_draws
from benchmarks.replay.workloads import BATCH

METRICS = (
    Metric("samples_per_s", "samples/s", "higher", digits=0),
    Metric("us", "us a batch, taken and read"),
    Metric("cpu_us", "CPU us a batch, all processes"),
    Metric("server_us", "the server's"),
    Metric("socket_bytes", "bytes a batch through sockets", digits=0),
)


def timed(
    take: Callable[[], Any],
    work: Work,
    seconds: float,
    server: Child | None = None,
    crossed: Callable[[], int] | None = None,
) -> Figures:
    """Return figures of taking batches; the first batch is checked."""
    work.check(take())
    through = crossed() if crossed else 0
    before, taken = server.cpu_s() if server else 0.0, count()

    def counted() -> Any:
        next(taken)
        return take()

    figures = time_draws(counted, seconds)
    figures["samples_per_s"] = BATCH / figures["us"] * 1e6
    if server:  # also for the warm-up
        figures["server_us"] = (server.cpu_s() - before) / (batches := next(taken)) * 1e6
        if crossed:
            figures["socket_bytes"] = (crossed() - through) / batches
    return figures


def in_process(seconds: float, work: Work) -> Figures:
    """The same table without a server."""
    buffer = ours.table(work)
    for chunk in work.chunks():
        buffer.extend(chunk, stream=0)
    return timed(lambda: buffer.sample(BATCH), work, seconds)


def served(
    seconds: float, work: Work, transport: str, loader: bool = False, **options: Any
) -> Figures:
    """``transport``: shm, or sockets of the named kind."""
    options["transport"] = "shm" if transport == "shm" else "tcp"
    with ours.serving(work, transport) as (server, address):
        ours.fill(address, work)
        with ours.taking(address, loader, **options) as take:
            return timed(take, work, seconds, server, partial(ours.crossed, address))


def reverb(seconds: float, work: Work, workers: int) -> Figures:
    with theirs.serving(work) as (server, address):
        theirs.fill(address, work)
        return timed(theirs.taking(address, workers), work, seconds, server)


def project(
    name: str,
    measure: Callable[..., Figures],
    against: str | None = None,
    once: bool = False,
    **options: Any,
) -> Contender:
    return Contender(name, "project", partial(measure, **options), against, once)


def peer(name: str, against: str | None = None, once: bool = False, **options: Any) -> Contender:
    return Contender(name, "reverb", partial(reverb, **options), against, once)
