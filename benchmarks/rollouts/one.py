"""One trajectory of 1,000 tokens through another process."""

from functools import partial

from benchmarks.harness import Contender, Metric, Row, Target
from benchmarks.rollouts import ours, theirs
from benchmarks.rollouts.tokens import FIELDS
from benchmarks.rollouts.workloads import Work

WORK, OURS = Work(1, FIELDS, 1000), "async_loader"

ROW = Row(
    "one",
    "rollouts: one trajectory of 1,000 tokens",
    (
        Metric("sum", "ms in all", digits=3),
        Metric("put", "put", digits=3),
        Metric("get", "get", digits=3),
    ),
    (
        Contender(OURS, "project", partial(ours.measured, work=WORK)),
        Contender("TransferQueue", "transfer-queue", partial(theirs.transfer_queue, work=WORK)),
        Contender("multiprocessing.Queue", "project", partial(theirs.plain_queue, work=WORK)),
    ),
    (Target("<= 0.4 ms", "sum", 0.4, OURS),),
)
