"""Row 10: batches over tcp loopback, and bare ZeroMQ messages of the same frames,
neither drawn nor decoded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.feeder import ours
from benchmarks.feeder.processes import child
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import time_batches
from benchmarks.replay.workloads import BATCH

SMALL, ATARI = Work("small"), Work("atari", linked=True)
STREAMS = {"small": (SMALL, BATCH), "medium": (SMALL, 8192), "large": (ATARI, BATCH)}
"""Tables, and rows of a message: of 50 kB, 1.5 MB and 14 MB."""

AHEAD = {"small": 64, "medium": 8, "large": 4}
"""Batches that our learner lets be on their way, as it may say; of the bare stream,
QUEUED_BYTES may be.
"""
QUEUED_BYTES = 64 << 20
GIVE_UP_MS = 200


def served(seconds: float) -> Figures:
    figures = {}
    for name, (work, rows) in STREAMS.items():
        with ours.serving(work, "tcp") as (_, address):
            ours.fill(address, work)
            with ours.taking(address, batch=rows, prefetch=AHEAD[name]) as take:
                work.check(take(), rows)
                figures[f"{name}_mb_per_s"] = _rate(take, _bytes(work, rows), seconds)
    return figures


def bare(seconds: float) -> Figures:
    """PUSH to PULL: as fast as ZeroMQ can send."""
    figures = {}
    for name, (work, rows) in STREAMS.items():
        with _pulling(work, rows) as take:
            figures[f"{name}_mb_per_s"] = _rate(take, _bytes(work, rows), seconds)
    return figures


def _rate(take: Callable[[], Any], nbytes: int, seconds: float) -> float:
    taken_s, _ = time_batches(take, seconds)
    return nbytes / taken_s / 1e6


def _frames(work: Work, rows: int) -> list[Any]:
    """Return the frame sizes of a batch on the wire, the header's first."""
    from async_loader.feeder.wire import BatchForm, Message, encode
    from async_loader.replay.arguments import schema_of_columns

    table = ours.table(work)
    table.extend(next(work.chunks()), stream=0)
    columns = table.sample(rows)
    form = BatchForm.of(schema_of_columns(columns), rows)
    return encode(Message(form.batch(list(columns.values()))))


def _bytes(work: Work, rows: int) -> int:
    return sum(memoryview(frame).nbytes for frame in _frames(work, rows))


@contextmanager
def _pulling(work: Work, rows: int) -> Iterator[ours.Take]:
    import numpy as np
    import zmq

    with (
        child(ours.PRELOAD, _push, work, rows) as sender,
        zmq.Context() as context,
        context.socket(zmq.PULL) as socket,
    ):
        address, queued = sender.hear()
        socket.rcvhwm = queued
        socket.connect(address)

        def take() -> list[Any]:
            return [np.frombuffer(frame, np.uint8) for frame in socket.recv_multipart(copy=False)]

        yield take


def _push(pipe: Any, work: Work, rows: int) -> None:
    """Send the same message until the peer stops taking it."""
    import zmq

    frames = _frames(work, rows)
    queued = max(4, QUEUED_BYTES // sum(memoryview(frame).nbytes for frame in frames))
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.sndhwm, socket.linger, socket.sndtimeo = queued, 0, GIVE_UP_MS
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        pipe.send((f"tcp://127.0.0.1:{port}", queued))
        while not pipe.poll(0):
            try:
                while True:
                    socket.send_multipart(frames, copy=False)
            except zmq.Again:
                continue


OURS, BARE = "async_loader, tcp", "limit: PUSH to PULL of the same frames"

ROW = Row(
    "10",
    "service: a stream of batches over tcp loopback",
    (
        Metric("large_mb_per_s", "MB/s, 14 MB messages", "higher", digits=0),
        Metric("medium_mb_per_s", "MB/s, 1.5 MB", "higher", digits=0),
        Metric("small_mb_per_s", "MB/s, 50 kB", "higher", digits=0),
    ),
    (Contender(OURS, "project", served), Contender(BARE, "project", bare)),
    (
        Target("14 MB: >= 90% of a bare stream", "large_mb_per_s", 0.9, OURS, (BARE,)),
        Target("1.5 MB: >= 80%", "medium_mb_per_s", 0.8, OURS, (BARE,)),
        Target("50 kB: >= 60%", "small_mb_per_s", 0.6, OURS, (BARE,)),
    ),
    seconds=1,
)
