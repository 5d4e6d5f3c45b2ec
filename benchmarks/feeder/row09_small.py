"""Row 9: actors insert small transitions, one at a time and in blocks."""

from benchmarks.feeder.inserting import METRICS, contender, reverb, served
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Row, Target

WORK = Work("small")
ONE, MANY, THEIRS = "async_loader, append", "async_loader, extend", "reverb"

ROW = Row(
    "9",
    "service: inserts of small transitions, acknowledged",
    METRICS,
    (
        contender(ONE, "project", served, work=WORK),
        contender(MANY, "project", served, work=WORK, batched=True),
        contender(
            "async_loader, append, tcp", "project", served, once=True, work=WORK, transport="tcp"
        ),
        contender(
            "async_loader, append, linked next_obs",
            "project",
            served,
            once=True,
            work=Work("small", linked=True),
        ),
        contender(THEIRS, "reverb", reverb, work=WORK),
    ),
    (
        Target("one at a time: >= 20x Reverb", "rows_per_s_1", 20, ONE, (THEIRS,)),
        Target("in blocks: >= 150x Reverb", "rows_per_s_1", 150, MANY, (THEIRS,)),
    ),
    seconds=1,
)
