"""Actors write to a server's table: what the rows of it have in common. Sets no target.

Rows count when the server has acknowledged them: the clock runs until the last actor's flush has
returned. The tables are full beforehand, so that each row makes room for itself and no page is new.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.feeder import ours, theirs
from benchmarks.feeder.processes import Child, Crew, crew
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Contender, Figures, Metric

ACTORS = (1, 4, 16)
METRICS = (
    *(
        Metric(
            f"rows_per_s_{count}", f"rows/s, {count} actor{'s' * (count > 1)}", "higher", digits=0
        )
        for count in ACTORS
    ),
    Metric("server_us", "server's CPU us a row, 1 actor"),
)
"""All of a contender's actors are there from the start; those that have nothing to do wait."""


def served(seconds: float, work: Work, batched: bool = False, transport: str = "ipc") -> Figures:
    with ours.serving(work, transport) as (server, address):
        ours.fill(address, work)
        with crew(ours.PRELOAD, max(ACTORS), ours.writing, address, work, batched) as actors:
            figures = _rates(actors, server, seconds)
        with ours.taking(address) as take:
            work.check(take())
    return figures


def reverb(seconds: float, work: Work) -> Figures:
    with theirs.serving(work) as (server, address):
        theirs.fill(address, work)
        with crew(theirs.PRELOAD, max(ACTORS), theirs.writing, address, work) as actors:
            figures = _rates(actors, server, seconds)
        work.check(theirs.taking(address, 1)())
    return figures


def _rates(actors: Crew, server: Child, seconds: float) -> Figures:
    figures: dict[str, Any] = {}
    for count in ACTORS:
        before = server.cpu_s()
        actors.begin(count, seconds)
        rows, rate = actors.written(count, seconds)
        figures[f"rows_per_s_{count}"] = rate
        if count == 1:
            figures["server_us"] = (server.cpu_s() - before) / rows * 1e6
    return figures


def contender(
    name: str,
    environment: str,
    measure: Callable[..., Figures],
    against: str | None = None,
    once: bool = False,
    **options: Any,
) -> Contender:
    return Contender(name, environment, partial(measure, **options), against, once)
