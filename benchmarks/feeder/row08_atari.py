"""Row 8: batches of 256 transitions of two stacks of four frames from a server on the same host."""

from benchmarks.feeder.sampling import METRICS, in_process, peer, project, served
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Row, Target
from benchmarks.replay.workloads import BATCH

LINKED, TWICE = Work("atari", linked=True), Work("atari")
OURS, OURS_TWICE = "async_loader, linked frames, shm", "async_loader, stored twice, shm"
HERE, HERE_TWICE = "async_loader, linked frames, no server", "async_loader, stored twice, no server"
THEIRS, THEIRS_LINKED = "reverb", "reverb, linked frames"

ROW = Row(
    "8-atari",
    f"service: batches of {BATCH} transitions of two 4x84x84 stacks",
    METRICS,
    (
        project(OURS, served, work=LINKED, transport="shm"),
        project(OURS_TWICE, served, work=TWICE, transport="shm"),
        project(
            "async_loader, linked frames, ipc", served, once=True, work=LINKED, transport="ipc"
        ),
        project(
            "async_loader, linked frames, tcp", served, once=True, work=LINKED, transport="tcp"
        ),
        project(
            "async_loader, linked frames, shm, AsyncDataLoader",
            served,
            once=True,
            work=LINKED,
            transport="shm",
            loader=True,
        ),
        project(HERE, in_process, once=True, work=LINKED),
        project(HERE_TWICE, in_process, OURS_TWICE, once=True, work=TWICE),
        peer(THEIRS, OURS_TWICE, work=TWICE, workers=2),
        peer(THEIRS_LINKED, work=LINKED, workers=2),
    ),
    (
        Target(
            "linked frames: >= 10x the better of Reverb's",
            "samples_per_s",
            10,
            OURS,
            (THEIRS, THEIRS_LINKED),
        ),
        Target("less than 1 KB a batch crosses ZeroMQ", "socket_bytes", 1024, OURS),
        Target("stored twice: >= 10x Reverb", "samples_per_s", 10, OURS_TWICE, (THEIRS,)),
    ),
)
