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
    KEPT_FROM,
    NEVER,
    ROWS,
)
from async_loader.replay.kernels.items import lend
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

    Where no item may be lost, the rows of all these writers are committed in the order of their
    ids: see table/room.py, NOTE [granted rows of a queue].
    """
    count, wrong, again = 0, False, True
    while again:
        again = False
        for i in range(len(grant_logs)):
            if peek64(grant_logs[i] + grant_log.WRONG) == 0:
                before = _others(g, grant_logs, i) if _keeps(g) else NEVER
                some = _commit_ring(g, grant_logs[i], before, streams, changes)
                count += some
                again |= some > 0 and before != NEVER
                wrong |= peek64(grant_logs[i] + grant_log.WRONG) != 0
    return -1 - count if wrong else count


@kernel(inline=True)
def _keeps(g: Any) -> bool:
    return g[KEPT_FROM] != NEVER


@kernel(inline=True)
def _first_held(book: int) -> int:
    """Return the id of the oldest row that a writer holds; NEVER if it holds none."""
    if peek64(book + grant_log.HELD) == 0:
        return NEVER
    oldest = peek64(book + grant_log.OLDEST)
    return peek64(
        peek64(book + grant_log.EXTENTS) + 16 * (oldest % peek64(book + grant_log.PLACES))
    )


@kernel(inline=True)
def _others(g: Any, grant_logs: Any, i: int) -> int:
    """Return the id of the oldest row that one of the other writers holds and has steps for."""
    first = NEVER
    for k in range(len(grant_logs)):
        if k != i and peek64(grant_logs[k] + grant_log.WRONG) == 0:
            held = _first_held(grant_logs[k])
            # older ones may have been granted ahead of the steps
            if held >= g[KEPT_FROM]:
                first = min(first, held)
    return first


@kernel(inline=True)
def _comes_later(book: int, record: int, before: int) -> bool:
    """Return whether a record fills a row that is not older than ``before``."""
    flags = peek64(record + 8 * ring_format.SIZE)
    if flags & (ring_format.SKIPPED | ring_format.ENDED) or before == NEVER:
        return False
    first = _first_held(book)
    return before <= first < NEVER


@kernel(inline=True)
def _commit_ring(g: Any, book: int, before: int, streams: int, changes: Any) -> int:
    ring, start = peek64(book + grant_log.RING), peek64(book + grant_log.COMMITTED)
    stop = load(ring + ring_format.PUBLISHED)
    if stop == start:
        return 0
    place, wrong = start, stop < start or stop > start + ring_format.SIZE
    while place < stop and not wrong:
        record = ring + ring_format.RECORDS + 8 * (place % ring_format.SIZE)
        if _comes_later(book, record, before):
            break
        wrong = not _commit_record(g, book, record, streams, changes)
        place += not wrong
    if wrong:
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
        name = _next_row(g, book)
        if _keeps(g):
            lend(g, 1, name)


@kernel(keeps_gil=True)
def abandon(g: Any, book: int) -> None:
    """Give up rows that were granted and will not be filled: they stay empty until the order
    reaches them again.
    """
    _give_up(g, book, peek64(book + grant_log.HELD))


@kernel(keeps_gil=True)
def news(g: Any, grant_logs: Any) -> bool:
    """Return whether `commit` would commit records."""
    for i in range(len(grant_logs)):
        book = grant_logs[i]
        ring, start = peek64(book + grant_log.RING), peek64(book + grant_log.COMMITTED)
        if load(ring + ring_format.PUBLISHED) == start or peek64(book + grant_log.WRONG):
            continue
        before = _others(g, grant_logs, i) if _keeps(g) else NEVER
        record = ring + ring_format.RECORDS + 8 * (start % ring_format.SIZE)
        if not _comes_later(book, record, before):
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
