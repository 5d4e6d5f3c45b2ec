"""Memory per step of Atari, for stacks of four frames and the stack after: what the process
grows by as the table fills.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import resident
from benchmarks.replay import tables, workloads

WORK = workloads.Atari()


def grown(seconds: float, make: Callable[[workloads.Atari], Any]) -> Figures:
    """Measured, not computed.

    A first small table brings in what is not the table's: imports, compiled code, the frames.
    """
    make(replace(WORK, rows=2 * workloads.EPISODE))
    before = resident()
    table = make(WORK)
    after = resident()
    del table
    return {"bytes": (after - before) / WORK.rows}


def torchrl(work: workloads.Atari) -> Any:
    return tables.torchrl(work, workloads.BATCH)


LINKED, TWICE = "async_loader, linked frames", "async_loader, stored twice"

ROW = Row(
    "memory",
    f"memory of {WORK.rows:,} Atari steps in episodes of {workloads.EPISODE}, stack 4 and next_obs",
    (Metric("bytes", "bytes a step", digits=0),),
    (
        Contender(LINKED, "project", partial(grown, make=tables.ours_linked)),
        Contender(TWICE, "project", partial(grown, make=tables.ours)),
        Contender("cpprb", "replay-peers", partial(grown, make=tables.cpprb)),
        Contender(
            "cpprb, next_of, stack_compress",
            "replay-peers",
            partial(grown, make=partial(tables.cpprb, next_of="obs", stack_compress="obs")),
        ),
        Contender("torchrl", "replay-peers", partial(grown, make=torchrl)),
        Contender(
            "stable-baselines3, optimized memory",
            "replay-peers",
            partial(grown, make=partial(tables.sb3, optimize_memory_usage=True)),
        ),
    ),
    (Target("linked frames: <= 1/7 of stored twice", "bytes", 7, LINKED, (TWICE,)),),
    repeats=1,
)
