"""Kernels on rows that other processes fill: granted, committed when they are full, or abandoned.

Under the table's lock.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import grant_log, ring_format
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import (
    CAPACITY,
    CURSOR,
    ENDS,
    FINAL,
    GIVEN,
    GRANTED,
    HELD,
    ROWS,
)
from async_loader.replay.kernels.machine import load, peek8, peek64, poke8, poke64, store
from async_loader.replay.kernels.writing import end_here, next_row, retire, settle


@kernel(keeps_gil=True)
def grant(g: Any, count: int, changes: Any) -> int:
    """Take up to ``count`` consecutive rows out of the order.

    Return the first id; ``changes[2]`` is how many.
    """
    first, _ = next_row(g, changes)
    taken = 1
    while taken < count:
        row = g[CURSOR] % g[ROWS]
        if row == 0 or peek8(g[HELD] + row):
            break
        next_row(g, changes)
        taken += 1
    for k in range(taken):
        poke8(g[HELD] + (first + k) % g[ROWS], 1)
    g[GRANTED] += taken
    changes[2] = taken
    return first


@kernel(keeps_gil=True)
def commit(g: Any, grant_logs: Any, streams: int, changes: Any) -> int:
    """Commit the records that writers have published.

    Return how many, as `grant_log` counts them; it is negative, and smaller by one, if a writer is
    WRONG.

    Records of one writer are committed in its order. ``streams``: how many streams the table has.
    No row is in DIED first and then in BORN, however many records there are: no id is assigned
    here, and an ended item never begins again.
    """
    count, wrong = 0, False
    for i in range(len(grant_logs)):
        if peek64(grant_logs[i] + grant_log.WRONG) == 0:
            count += _commit_ring(g, grant_logs[i], streams, changes)
            wrong |= peek64(grant_logs[i] + grant_log.WRONG) != 0
    return -1 - count if wrong else count


@kernel(inline=True)
def _commit_ring(g: Any, book: int, streams: int, changes: Any) -> int:
    ring, start = peek64(book + grant_log.RING), peek64(book + grant_log.COMMITTED)
    stop = load(ring + ring_format.PUBLISHED)
    if stop == start:
        return 0
    place = start
    if start < stop <= start + ring_format.SIZE:
        while place < stop and _commit_record(
            g, book, ring + ring_format.RECORDS + 8 * (place % ring_format.SIZE), streams, changes
        ):
            place += 1
    if place < stop or stop < start:
        poke64(book + grant_log.WRONG, 1)
    poke64(book + grant_log.COMMITTED, place)
    store(ring + ring_format.COMMITTED, place)
    return place - start


@kernel(inline=True)
def _commit_record(g: Any, book: int, record: int, streams: int, changes: Any) -> bool:
    """Commit one record.

    Return whether it is valid: a writer may write anything into its ring, and nowhere else in the
    memory of the table's process.
    """
    stream, flags = peek64(record), peek64(record + 8 * ring_format.SIZE)
    if flags & ring_format.SKIPPED:
        if stream < 0 or stream > peek64(book + grant_log.HELD):
            return False
        _give_up(g, book, stream)
        return True
    if stream < 0 or stream >= streams:
        return False
    if flags & ring_format.ENDED:
        end_here(g, stream, flags & ENDS, changes)
        return True
    if peek64(book + grant_log.HELD) == 0:
        return False
    name = _next_row(g, book)
    if g[GIVEN]:
        poke64(g[GIVEN] + 8 * (name % g[ROWS]), peek64(record + 16 * ring_format.SIZE))
    settle(g, name, name % g[ROWS], stream, flags, changes)
    if flags & FINAL == 0:
        poke64(book + grant_log.STEPPED, peek64(book + grant_log.STEPPED) + 1)
    return True


@kernel(inline=True)
def _next_row(g: Any, book: int) -> int:
    """Return the id of the next granted row in order, which is not held any more."""
    oldest = peek64(book + grant_log.OLDEST)
    extent = peek64(book + grant_log.EXTENTS) + 16 * (oldest % peek64(book + grant_log.PLACES))
    name, left = peek64(extent), peek64(extent + 8)
    if left == 1:
        poke64(book + grant_log.OLDEST, oldest + 1)
    else:
        poke64(extent, name + 1)
        poke64(extent + 8, left - 1)
    poke64(book + grant_log.HELD, peek64(book + grant_log.HELD) - 1)
    poke8(g[HELD] + name % g[ROWS], 0)
    g[GRANTED] -= 1
    return name


@kernel(inline=True)
def _give_up(g: Any, book: int, count: int) -> None:
    for _ in range(count):
        _next_row(g, book)


@kernel(keeps_gil=True)
def abandon(g: Any, book: int) -> None:
    """Give up rows that were granted and will not be filled: they stay empty until the order
    reaches them again.
    """
    _give_up(g, book, peek64(book + grant_log.HELD))


@kernel(keeps_gil=True)
def news(grant_logs: Any) -> bool:
    """Return whether published records are waiting to be committed."""
    for i in range(len(grant_logs)):
        book = grant_logs[i]
        ring = peek64(book + grant_log.RING)
        if (
            load(ring + ring_format.PUBLISHED) != peek64(book + grant_log.COMMITTED)
            and peek64(book + grant_log.WRONG) == 0
        ):
            return True
    return False


@kernel(keeps_gil=True)
def room_ahead(g: Any, most: int, changes: Any) -> int:
    """Return how many of the next ``most`` rows are free. If fewer than two are, skip these rows.

    Skipping many held rows at once may end an item and begin another one in the same row; see
    `write`.
    """
    free = 0
    for k in range(most):
        free += peek8(g[HELD] + (g[CURSOR] + k) % g[ROWS]) == 0
    if free < 2:
        for _ in range(most):
            name = g[CURSOR] - g[CAPACITY]
            retire(g, name, name % g[ROWS], changes)
            g[CURSOR] += 1
    return free
