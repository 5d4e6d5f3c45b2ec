"""The measuring that all contenders share: reading batches, timing them, counting what is left. Imports no contender."""

import gc
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WARM_UP_BATCHES = 8
WARM_UP_S = 0.5


def read(batch: Any) -> int:
    """Touch every byte of a batch, as cheaply as that can be done; the sum of its 64-bit words (or what fits) is returned."""
    if isinstance(batch, dict):
        return sum(read(value) for value in batch.values())
    if isinstance(batch, (list, tuple)):
        return sum(read(value) for value in batch)
    array = batch.numpy().reshape(-1).view(np.uint8)
    word = np.uint64 if array.nbytes % 8 == 0 else np.uint8
    return int(np.add.reduce(array.view(word)))


def warm_up(take: Callable[[], Any]) -> None:
    """A few batches or a moment, whichever comes first; the slowest peer takes half a second for each."""
    end = time.perf_counter() + WARM_UP_S
    for _ in range(WARM_UP_BATCHES):
        read(take())
        if time.perf_counter() > end:
            return


def time_batches(take: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Means over `seconds` of taking a batch and reading it: seconds, and CPU seconds of all processes."""
    warm_up(take)
    count, cpu, start = 0, cpu_s(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        read(take())
        count += 1
    return (now - start) / count, (cpu_s() - cpu) / count


def cpu_s() -> float:
    """CPU time so far of this process and its children that are alive: what neighbours on the machine change least."""
    import psutil

    me = psutil.Process()
    return sum(times.user + times.system for times in (p.cpu_times() for p in (me, *me.children(recursive=True))))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def held() -> dict[str, int]:
    """What this process holds now: child processes, threads, file descriptors, shared memory segments (mapped or named)."""
    import psutil

    gc.collect()
    me = psutil.Process()
    children = [child for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return {
        "processes": len(children),
        "threads": me.num_threads(),
        "fds": me.num_fds(),
        "segments": len(_mapped_segments()) + len(os.listdir("/dev/shm")),
    }


def _mapped_segments() -> set[str]:
    with open("/proc/self/maps") as maps:
        return set(re.findall(r"(\d+) +/(?:memfd:|dev/shm/)", maps.read()))
