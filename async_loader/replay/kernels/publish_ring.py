"""A writer's rows, and what it and the owner tell each other about them in shared memory. Links and
publishes nothing.

See async_loader/replay/remote, NOTE [lane].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.ring_format import (
    ADOPTED,
    CLOSED,
    PERMITS,
    PUBLISHED,
    RECORDS,
    SHUT,
    SIZE,
    STALE,
    WANTED,
)
from async_loader.replay.base.row_format import AWAITS, FINAL, ROWS
from async_loader.replay.kernels.machine import (
    compare_and_swap,
    copy,
    full_fence,
    load,
    poke64,
    poke_float,
    store,
)


@kernel(keeps_gil=True)
def claim(address: int, pid: int) -> int:
    """Be the one process that uses the handle; 0, or the pid of who does."""
    return 0 if compare_and_swap(address, 0, pid) else load(address)


@kernel(keeps_gil=True)
def take(lane: int, most: int, cursor: int, oldest: int) -> int:
    """InsertCredits for 0 to ``most`` steps; SHUT; or STALE if the table's ids have gone beyond
    ``oldest``.
    """
    if load(lane + CLOSED) != 0:
        return SHUT
    if load(cursor) > oldest:
        return STALE
    while True:
        left = load(lane + PERMITS)
        taken = min(left, most)
        if taken <= 0:
            return 0
        if compare_and_swap(lane + PERMITS, left, left - taken):
            return taken


@kernel(keeps_gil=True)
def give(lane: int, count: int) -> None:
    """More permits."""
    while True:
        left = load(lane + PERMITS)
        if compare_and_swap(lane + PERMITS, left, left + count):
            return


@kernel(keeps_gil=True)
def take_back(lane: int) -> int:
    """All permits that have not been taken; how many."""
    while True:
        left = load(lane + PERMITS)
        if compare_and_swap(lane + PERMITS, left, 0):
            return left


@kernel(inline=True)
def _fill(g: Any, fields: Any, i: int, row: int) -> None:
    for f in range(len(fields)):
        copy(
            fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE],
            fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE],
            fields[f, NBYTES],
        )


@kernel(inline=True)
def _record(lane: int, place: int, stream: int, flags: int, given: float) -> None:
    address = lane + RECORDS + 8 * (place % SIZE)
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
    lane: int,
    place: int,
) -> int:
    """Write steps ``start`` to ``stop``, and the final observations of those that have AWAITS, into
    the rows of ``names``.

    The sources are as `write` takes them; what is to be known about each row goes into the lane
    from record ``place`` on. Returns the place after the last record. Nothing is published.
    """
    k = 0
    for i in range(start, stop):
        ids[i] = names[k]
        _fill(g, fields, i, names[k] % g[ROWS])
        _record(lane, place + k, streams[i], flags[i], given[i] if len(given) else np.nan)
        k += 1
        if flags[i] & AWAITS:
            _fill(g, final, i, names[k] % g[ROWS])
            _record(lane, place + k, streams[i], FINAL, np.nan)
            k += 1
    return place + k


@kernel(keeps_gil=True)
def note(lane: int, place: int, stream: int, flags: int) -> None:
    """A record without a row of its own fields."""
    _record(lane, place, stream, flags, np.nan)


@kernel(keeps_gil=True)
def publish(lane: int, count: int) -> bool:
    """One store: everything up to record ``count`` is complete. Whether to ring."""
    store(lane + PUBLISHED, count)
    full_fence()  # or the owner, about to wait, and this writer could both look too early
    if load(lane + WANTED) == 0:
        return False
    store(lane + WANTED, 0)
    return True


@kernel(keeps_gil=True)
def ask_to_ring(lanes: Any) -> None:
    """From now on the next record rings; look once more before waiting for that."""
    for i in range(len(lanes)):
        store(lanes[i] + WANTED, 1)
    full_fence()


@kernel(keeps_gil=True)
def close_ring(lane: int, state: int) -> None:
    store(lane + CLOSED, state)


@kernel(keeps_gil=True)
def freed(lane: int) -> int:
    """Records that the owner has adopted."""
    return load(lane + ADOPTED)
