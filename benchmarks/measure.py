"""The measuring that all contenders share: reading batches, timing them, counting what is left.

Imports no contender.
"""

import ctypes
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


_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.uint64)
_add_up = np.add.reduce


def read(batch: Any) -> None:
    """Touch every byte of a batch, as cheaply as that can be done:
    64-bit words (or what fits) are added up.
    """
    if isinstance(batch, np.ndarray):
        if not batch.flags.c_contiguous:
            return _read_in_pieces(batch)
        flat = batch.reshape(-1)
        _add_up(flat.view(_BYTE if flat.nbytes & 7 else _WORD))
    elif isinstance(batch, (dict, list, tuple)):
        for value in batch.values() if isinstance(batch, dict) else batch:
            read(value)
    elif hasattr(batch, "asnumpy"):
        read(_of_mxnet(batch))
    else:
        read(batch.numpy())
    return None


def _of_mxnet(batch: Any) -> np.ndarray:
    """An NDArray's memory, when it has been written: ``asnumpy`` would copy it,
    which no other contender has to pay.
    """
    from mxnet.base import _LIB

    batch.wait_to_read()
    where = ctypes.c_void_p()
    _LIB.MXNDArrayGetData(batch.handle, ctypes.byref(where))
    return np.frombuffer(
        (ctypes.c_char * (batch.size * np.dtype(batch.dtype).itemsize)).from_address(
            where.value or 0
        ),
        np.uint8,
    )


def _read_in_pieces(array: np.ndarray) -> None:
    """Order the array by memory, in which each row at least is contiguous."""
    array = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    if array.flags.c_contiguous:
        return read(array)
    rows = array.reshape(len(array), -1)
    _add_up(rows.view(_BYTE if (rows.strides[0] | rows[0].nbytes) & 7 else _WORD), axis=None)
    return None


def warm_up(take: Callable[[], Any]) -> None:
    """A few batches or a moment, whichever comes first;
    the slowest peer takes half a second for each.
    """
    end = time.perf_counter() + WARM_UP_S
    for _ in range(WARM_UP_BATCHES):
        read(take())
        if time.perf_counter() > end:
            return


def time_batches(take: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Means over `seconds` of taking a batch and reading it: seconds,
    and CPU seconds of all processes.
    """
    warm_up(take)
    count, cpu, start = 0, cpu_s(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        read(take())
        count += 1
    return (now - start) / count, (cpu_s() - cpu) / count


def time_draws(take: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Means over `seconds` of drawing a batch and reading it, of the drawing alone, and CPU time,
    in microseconds.
    """
    _keep_freed_memory()
    warm_up(take)
    count, drawing, cpu, start = 0, 0.0, cpu_s(), time.perf_counter()
    while (begin := time.perf_counter()) - start < seconds:
        batch = take()
        drawing += time.perf_counter() - begin
        read(batch)
        del batch
        count += 1
    return {
        "us": (begin - start) / count * 1e6,
        "draw_us": drawing / count * 1e6,
        "cpu_us": (cpu_s() - cpu) / count * 1e6,
    }


def _keep_freed_memory() -> None:
    """glibc keeps for reuse what is no larger than the largest block freed so far (32 MiB at most),
    and else faults it in anew.

    A batch of frames takes 2 or 6 ms by that, which says nothing of a table: as after any large
    temporary, all keep it.
    """
    np.ones(31 << 20, np.uint8)


def time_calls(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Return mean durations over `seconds` of a call whose result is unused, in microseconds.
    The caller has warmed it up.
    """
    count, cpu, start = 0, cpu_s(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        call()
        count += 1
    return {"us": (now - start) / count * 1e6, "cpu_us": (cpu_s() - cpu) / count * 1e6}


def cpu_s() -> float:
    """CPU time so far of this process and its children that are alive:
    what neighbours on the machine change least.
    """
    import psutil

    me = psutil.Process()
    return sum(
        times.user + times.system
        for times in (p.cpu_times() for p in (me, *me.children(recursive=True)))
    )


def resident() -> int:
    """Bytes of memory that this process takes, shared memory once;
    what can be given back has been.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as rollup:
        found = re.search(r"^Pss: +(\d+) kB", rollup.read(), re.MULTILINE)
        return int(found[1]) * 1024  # type: ignore[index]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def held() -> dict[str, int]:
    """What this process holds now: child processes, threads, file descriptors,
    shared memory segments (mapped or named).
    """
    import psutil

    gc.collect()
    me = psutil.Process()
    children = [
        child for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE
    ]
    return {
        "processes": len(children),
        "threads": me.num_threads(),
        "fds": me.num_fds(),
        "segments": len(_mapped_segments()) + len(os.listdir("/dev/shm")),
    }


def _mapped_segments() -> set[str]:
    with open("/proc/self/maps") as maps:
        return set(re.findall(r"(\d+) +/(?:memfd:|dev/shm/)", maps.read()))
