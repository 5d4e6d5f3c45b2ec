"""A table on a disk, four times as large as a memory limit, beside plain reads of the same size.

The limit is a memory cgroup that the row makes; where none can be made, it says so. What the disk
holds is dropped from the page cache first. A batch is 64 transitions of a stack of 4 frames and the
next one: 64 places of 5 rows in a file. Times are the quickest of many: the disk is shared.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target

LIMIT = 192 << 20
_FRAME = 84 * 84
STEPS = 4 * LIMIT // _FRAME + 5_000
BATCH, ROWS = 64, 5
_PAGEOUT = 21
"""MADV_PAGEOUT: take pages out of the memory of the process."""
_GROUPS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
)


@contextlib.contextmanager
def limited() -> Iterator[Path]:
    """Put this process under the limit. Yield the file that says the most it used."""
    home = None
    for root, limit, peak in _GROUPS:
        group = Path(root) / f"async-loader-bench-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(LIMIT))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        home = Path(root) / "cgroup.procs"
        try:
            yield group / peak
        finally:
            home.write_text(str(os.getpid()))
            group.rmdir()
        return
    raise RuntimeError("no memory cgroup can be made here")


def filled(folder: str) -> Any:
    import numpy as np

    from async_loader import Field, ReplayBuffer, Transitions

    obs = Field((84, 84), "uint8", stack=4, next="next_obs")
    schema = {"obs": obs, "action": "int64", "reward": "float32", "terminated": "bool"}
    table = ReplayBuffer(STEPS, schema, view=Transitions(), seed=0, disk=folder)
    for begin in range(0, STEPS, 1_000):
        steps = np.arange(begin, min(STEPS, begin + 1_000))
        table.extend(
            obs=np.broadcast_to((steps % 251)[:, None, None], (len(steps), 84, 84)).astype("u1"),
            action=steps,
            reward=steps.astype(np.float32),
            terminated=np.zeros(len(steps), np.bool_),
            stream=0,
        )
    return table


def measured(seconds: float, take: Callable[[Any], Callable[[], Any]]) -> Figures:
    from async_loader.replay.buffer import shared_table

    home = os.environ.get("ASYNC_LOADER_BENCH_DISK", "/var/tmp")
    with tempfile.TemporaryDirectory(dir=home) as folder, limited() as peak:
        table = filled(folder)
        storage = shared_table(table).table.storage
        once, times = take(table), []
        once()  # compiles
        os.fsync(storage.segment.fileno())
        os.posix_fadvise(storage.segment.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pageout = ctypes.CDLL(None).madvise
        pageout(ctypes.c_void_p(storage.base), ctypes.c_size_t(storage.layout.nbytes), _PAGEOUT)
        faults = _faults()
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            begin = time.perf_counter()
            once()
            times.append(time.perf_counter() - begin)
        times.sort()
        return {
            "ms": 1e3 * times[0],
            "median": 1e3 * times[len(times) // 2],
            "faults": (_faults() - faults) / len(times),
            "peak": int(peak.read_text()) / (1 << 20),
        }


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def ours(table: Any) -> Callable[[], Any]:
    return partial(table.sample, BATCH)


def plain(table: Any, announced: bool) -> Callable[[], Any]:
    """Read as many bytes at random places of the same file."""
    import numpy as np

    from async_loader.replay.buffer import shared_table

    storage, rng = shared_table(table).table.storage, np.random.default_rng(0)
    fd = storage.segment.fileno()
    offset, stride = storage.layout.places[0]

    def once() -> None:
        places = (offset + rng.integers(0, STEPS - ROWS, BATCH) * stride).tolist()
        if announced:
            for place in places:
                os.posix_fadvise(fd, place, ROWS * stride, os.POSIX_FADV_WILLNEED)
        for place in places:
            os.pread(fd, ROWS * stride, place)

    return once


OURS, PLAIN = "sample(64) from a table on the disk", "plain reads, one after the other"
TOGETHER = "plain reads, all announced first"

ROW = Row(
    "disk",
    f"{BATCH} transitions of stacked frames, from a table of {STEPS * _FRAME >> 20} MiB on a disk "
    f"under a memory limit of {LIMIT >> 20} MiB",
    (
        Metric("ms", "ms a batch, quickest"),
        Metric("median", "ms, median"),
        Metric("faults", "waits for the disk beside", digits=2),
        Metric("peak", "MiB at most", digits=0),
    ),
    (
        Contender(OURS, "project", partial(measured, take=ours)),
        Contender(PLAIN, "project", partial(measured, take=partial(plain, announced=False))),
        Contender(TOGETHER, "project", partial(measured, take=partial(plain, announced=True))),
    ),
    (Target("as fast as plain reads", "ms", 1, OURS, (PLAIN,)),),
    seconds=3.0,
)
