"""Four actors insert small transitions one at a time while a learner takes batches of 256."""

from functools import partial

from benchmarks.feeder import ours, theirs
from benchmarks.feeder.processes import Child, Crew, crew
from benchmarks.feeder.sampling import timed
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Contender, Figures, Metric, Row
from benchmarks.replay.workloads import BATCH

WORK = Work("small")
ACTORS = 4
SETTLE_S = 0.6
"""What the learner's warm-up may take; the actors go on for that much longer."""


def served(seconds: float, transport: str) -> Figures:
    with ours.serving(WORK, transport) as (server, address):
        ours.fill(address, WORK)
        with (
            crew(ours.PRELOAD, ACTORS, ours.writing, address, WORK, False) as actors,
            ours.taking(address) as take,
        ):
            return _both(actors, take, server, seconds)


def reverb(seconds: float) -> Figures:
    with theirs.serving(WORK) as (server, address):
        theirs.fill(address, WORK)
        with crew(theirs.PRELOAD, ACTORS, theirs.writing, address, WORK) as actors:
            return _both(actors, theirs.taking(address, 2), server, seconds)


def _both(actors: Crew, take: ours.Take, server: Child, seconds: float) -> Figures:
    WORK.check(take())  # a first batch may take long
    actors.begin(ACTORS, seconds + SETTLE_S)
    figures = timed(take, WORK, seconds, server)
    _, rate = actors.written(ACTORS, seconds)
    return {**figures, "rows_per_s": rate}


ROW = Row(
    "both",
    f"service: {ACTORS} actors insert, a learner takes {BATCH} small transitions",
    (
        Metric("samples_per_s", "samples/s", "higher", digits=0),
        Metric("rows_per_s", "rows/s", "higher", digits=0),
        Metric("us", "us a batch, taken and read"),
        Metric("cpu_us", "CPU us a batch, all processes"),
    ),
    (
        Contender("async_loader, ipc", "project", partial(served, transport="ipc")),
        Contender("async_loader, tcp", "project", partial(served, transport="tcp")),
        Contender("reverb", "reverb", reverb),
    ),
    seconds=2,
)
