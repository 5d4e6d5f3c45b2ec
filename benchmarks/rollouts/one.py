"""One trajectory of 1,000 tokens through another process, to a learner that waits.

Of TransferQueue put and get follow each other in one process.
"""

import time
from functools import partial
from typing import Any

from benchmarks.feeder.processes import child
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.rollouts import handover, ours, theirs
from benchmarks.rollouts.tokens import FIELDS
from benchmarks.rollouts.workloads import Work

WORK, OURS = Work(1, FIELDS, 1000), "async_loader"


def through_feeder(seconds: float) -> Figures:
    """From the generator's append, in another process, to the batch."""
    with ours.serving(WORK, size=1) as (table, address), child((), _generate, address) as other:
        turns = ours.Turns(table, WORK)

        def turn() -> float:
            turns.get()
            end = time.monotonic()
            begun = other.hear(handover.LIMIT_S)
            turns.publish()
            return float(end - begun)

        return {"sum": handover.quantiles(seconds, turn)["p50"]}


def _generate(pipe: Any, address: str) -> None:
    from async_loader import connect

    with connect(address) as client:
        for group in client.table("bench").groups(range(1 << 30)):
            time.sleep(handover.REST_S)
            begun = time.monotonic()
            group.append(**WORK.values)
            group.commit()
            pipe.send(begun)


def through_queue(seconds: float) -> Figures:
    """As an object, to another process."""
    return {"sum": handover.through_queue(seconds, WORK.values)["p50"]}


ROW = Row(
    "one",
    "rollouts: one trajectory of 1,000 tokens, from its process to the learner's",
    (
        Metric("sum", "ms in all", digits=3),
        Metric("put", "put", digits=3),
        Metric("get", "get", digits=3),
    ),
    (
        Contender(OURS, "project", through_feeder),
        Contender("TransferQueue", "transfer-queue", partial(theirs.transfer_queue, work=WORK)),
        Contender("multiprocessing.Queue", "project", through_queue),
    ),
    (Target("<= 0.4 ms", "sum", 0.4, OURS),),
)
