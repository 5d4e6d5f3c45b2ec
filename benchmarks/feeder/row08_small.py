"""Row 8: batches of 256 small transitions from a server on the same host."""

from benchmarks.feeder.sampling import METRICS, in_process, peer, project, served
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Row, Target
from benchmarks.replay.workloads import BATCH

WORK = Work("small")
OURS, HERE, THEIRS = "async_loader, shm", "async_loader, no server", "reverb"

ROW = Row(
    "8",
    f"service: batches of {BATCH} small transitions",
    METRICS,
    (
        project(OURS, served, work=WORK, transport="shm"),
        project("async_loader, ipc", served, work=WORK, transport="ipc"),
        project("async_loader, tcp", served, once=True, work=WORK, transport="tcp"),
        project(
            "async_loader, shm, prefetch 4",
            served,
            once=True,
            work=WORK,
            transport="shm",
            prefetch=4,
        ),
        project(
            "async_loader, shm, AsyncDataLoader", served, work=WORK, transport="shm", loader=True
        ),
        project(HERE, in_process, work=WORK),
        peer(THEIRS, work=WORK, workers=2),
        peer("reverb, 1 worker", work=WORK, workers=1, once=True),
    ),
    (
        Target(">= 60x Reverb", "samples_per_s", 60, OURS, (THEIRS,)),
        Target("less than 1 KB a batch crosses ZeroMQ", "socket_bytes", 1024, OURS),
        Target(
            ">= 1/3 of the samples of the same table's draw without a server",
            "samples_per_s",
            1 / 3,
            OURS,
            (HERE,),
        ),
    ),
)
