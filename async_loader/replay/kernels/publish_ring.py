"""Kernels of a writer in another process: they fill granted rows, and exchange words with the
table's process.

See async_loader/replay/multiprocess, NOTE [publish ring].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.ring_format import (
    CLOSED,
    COMMITTED,
    CREDITS,
    PUBLISHED,
    RECORDS,
    SHUT,
    SIZE,
    STALE,
    WANTED,
)
from async_loader.replay.base.row_format import AWAITS, CURSOR, FINAL, OLD_AFTER, ROWS
from async_loader.replay.kernels.machine import (
    compare_and_swap,
    full_fence,
    load,
    poke64,
    poke_float,
    store,
)
from async_loader.replay.kernels.row_address import put_row


@kernel(keeps_gil=True)
def claim(address: int, pid: int) -> int:
    """Claim the handle for this process. Return 0, or the pid of the process that has it."""
    return 0 if compare_and_swap(address, 0, pid) else load(address)


@kernel(keeps_gil=True)
def take(ring: int, most: int, geometry: int, oldest: int) -> int:
    """Take credits for up to ``most`` steps.

    Return how many; SHUT; or STALE if the row ``oldest`` is too old by the table's ``geometry``.
    """
    if load(ring + CLOSED) != 0:
        return SHUT
    if load(geometry + 8 * CURSOR) - oldest > load(geometry + 8 * OLD_AFTER):
        return STALE
    while True:
        left = load(ring + CREDITS)
        taken = min(left, most)
        if taken <= 0:
            return 0
        if compare_and_swap(ring + CREDITS, left, left - taken):
            return taken


@kernel(keeps_gil=True)
def give(ring: int, count: int) -> None:
    """Add credits."""
    while True:
        left = load(ring + CREDITS)
        if compare_and_swap(ring + CREDITS, left, left + count):
            return


@kernel(keeps_gil=True)
def take_back(ring: int) -> int:
    """Take back all unused credits. Return how many."""
    while True:
        left = load(ring + CREDITS)
        if compare_and_swap(ring + CREDITS, left, 0):
            return left


@kernel(inline=True)
def _record(ring: int, place: int, stream: int, flags: int, given: float) -> None:
    address = ring + RECORDS + 8 * (place % SIZE)
    poke64(address, stream)
    poke64(address + 8 * SIZE, flags)
    poke_float(address + 16 * SIZE, given)


@kernel(keeps_gil=True)
def fill(
    g: Any,
    fields: Any,
    final: Any,
    start: int,
    stop: int,
    names: Any,
    streams: Any,
    flags: Any,
    given: Any,
    ids: Any,
    ring: int,
    place: int,
) -> int:
    """Write steps ``start`` to ``stop``, and the final observations of those with AWAITS, into the
    rows of ``names``.

    The sources are as for `write`. The record of each row goes into the ring from record ``place``
    on. Returns the place after the last record. Publishes nothing.
    """
    k = 0
    for i in range(start, stop):
        ids[i] = names[k]
        put_row(fields, 0, i, names[k] % g[ROWS])
        _record(ring, place + k, streams[i], flags[i], given[i] if len(given) else np.nan)
        k += 1
        if flags[i] & AWAITS:
            put_row(final, 0, i, names[k] % g[ROWS])
            _record(ring, place + k, streams[i], FINAL, np.nan)
            k += 1
    return place + k


@kernel(keeps_gil=True)
def note(ring: int, place: int, stream: int, flags: int) -> None:
    """Write a record without a row."""
    _record(ring, place, stream, flags, np.nan)


@kernel(keeps_gil=True)
def publish(ring: int, count: int) -> bool:
    """Publish all records before ``count``, by one store.

    Return whether to wake the table's process.
    """
    store(ring + PUBLISHED, count)
    full_fence()  # else the reader, about to wait, and this writer could both look too early
    if load(ring + WANTED) == 0:
        return False
    store(ring + WANTED, 0)
    return True


@kernel(keeps_gil=True)
def ask_to_ring(rings: Any) -> None:
    """Have the next record of each ring wake this process. Look once more before waiting."""
    for i in range(len(rings)):
        store(rings[i] + WANTED, 1)
    full_fence()


@kernel(keeps_gil=True)
def close_ring(ring: int, state: int) -> None:
    store(ring + CLOSED, state)


@kernel(keeps_gil=True)
def freed(ring: int) -> int:
    """Return how many records the table's process has committed."""
    return load(ring + COMMITTED)
