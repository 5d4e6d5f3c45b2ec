"""512 members of 1,000 tokens in three fields: put, rewarded later, got."""

from functools import partial

from benchmarks.harness import Contender, Metric, Row, Target
from benchmarks.rollouts import ours, theirs
from benchmarks.rollouts.workloads import Work

FIELDS = {"tokens": "int32", "logprob": "float32", "position": "int32"}
WORK = Work(512, FIELDS, 1000)
OURS = "async_loader, extend"
measured = partial(ours.measured, work=WORK, late=True)

ROW = Row(
    "tokens",
    "rollouts: 512 members of 1,000 tokens, three fields, and a late reward",
    (
        Metric("sum", "ms in all", digits=2),
        Metric("put", "put", digits=2),
        Metric("reward", "late reward", digits=2),
        Metric("get", "get", digits=2),
    ),
    (
        Contender(OURS, "project", measured),
        Contender("async_loader, groups()", "project", partial(measured, by_group=True)),
        Contender(
            "async_loader, in the process", "project", partial(measured, local=True), once=True
        ),
        Contender(
            "TransferQueue", "transfer-queue", partial(theirs.transfer_queue, work=WORK, late=True)
        ),
        Contender("multiprocessing.Queue", "project", partial(theirs.plain_queue, work=WORK)),
    ),
    (Target("<= 10 ms", "sum", 10, OURS),),
)
