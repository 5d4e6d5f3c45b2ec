"""64 MiB in 1, 8 and 32 ragged fields, put and got."""

from collections.abc import Callable
from functools import partial

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.rollouts import ours, theirs
from benchmarks.rollouts.workloads import Work

NBYTES, MEMBERS, FIELDS = 64 << 20, 256, (32, 8, 1)


def _each(seconds: float, measure: Callable[[float, Work], Figures]) -> Figures:
    figures = {}
    for count in FIELDS:
        tokens = NBYTES // MEMBERS // count // 4
        work = Work(MEMBERS, {f"f{i}": "float32" for i in range(count)}, tokens, ragged=True)
        found = measure(seconds, work)
        figures |= {f"{name}_{count}": value for name, value in found.items() if name != "reward"}
    return figures


OURS, QUEUE = "async_loader", "TransferQueue"
ROW = Row(
    "fields",
    "rollouts: 64 MiB of 256 ragged members, put and got",
    tuple(
        Metric(f"{name}_{count}", f"ms {label}, {count} fields")
        for count in FIELDS
        for name, label in (("sum", "in all"), ("put", "put"), ("get", "get"))
    ),
    (
        Contender(OURS, "project", partial(_each, measure=ours.measured)),
        Contender(
            "async_loader, in the process",
            "project",
            partial(_each, measure=partial(ours.measured, local=True)),
            once=True,
        ),
        Contender(QUEUE, "transfer-queue", partial(_each, measure=theirs.transfer_queue)),
        Contender(
            "multiprocessing.Queue", "project", partial(_each, measure=theirs.plain_queue)
        ),
    ),
    (
        Target("32 fields: <= a third of TransferQueue", "sum_32", 3, OURS, (QUEUE,)),
        Target("8 fields: <= a third of TransferQueue", "sum_8", 3, OURS, (QUEUE,)),
    ),
)  # fmt: skip
