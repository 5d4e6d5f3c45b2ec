"""Rows that other processes fill: granted, adopted when they are full, or abandoned.

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
from async_loader.replay.kernels.writing import end_here, next_id, retire, settle


@kernel(keeps_gil=True)
def grant(g: Any, count: int, changes: Any) -> int:
    """Take up to ``count`` rows that lie one behind the other out of the order; the first id,
    ``changes[2]`` of them.
    """
    first = next_id(g, changes)
    taken = 1
    while taken < count:
        row = g[CURSOR] % g[ROWS]
        if row == 0 or peek8(g[HELD] + row):
            break
        next_id(g, changes)
        taken += 1
    for k in range(taken):
        poke8(g[HELD] + (first + k) % g[ROWS], 1)
    g[GRANTED] += taken
    changes[2] = taken
    return first


@kernel(keeps_gil=True)
def adopt(g: Any, ledgers: Any, streams: int, changes: Any) -> int:
    """Take in what writers have published, one behind the other and each in its order; how many
    records, see `grant_log`.

    It is negative, and smaller by one, if a writer was found to be WRONG. ``streams``: how many the
    table has. No row is in DIED first and then in BORN, however many records there are: no id is
    given here, and what ends never begins again.
    """
    count, wrong = 0, False
    for i in range(len(ledgers)):
        if peek64(ledgers[i] + grant_log.WRONG) == 0:
            count += _commit_ring(g, ledgers[i], streams, changes)
            wrong |= peek64(ledgers[i] + grant_log.WRONG) != 0
    return -1 - count if wrong else count


@kernel(inline=True)
def _commit_ring(g: Any, book: int, streams: int, changes: Any) -> int:
    lane, start = peek64(book + grant_log.LANE), peek64(book + grant_log.ADOPTED)
    stop = load(lane + ring_format.PUBLISHED)
    if stop == start:
        return 0
    place = start
    if start < stop <= start + ring_format.SIZE:
        while place < stop and _commit_record(
            g, book, lane + ring_format.RECORDS + 8 * (place % ring_format.SIZE), streams, changes
        ):
            place += 1
    if place < stop or stop < start:
        poke64(book + grant_log.WRONG, 1)
    poke64(book + grant_log.ADOPTED, place)
    store(lane + ring_format.ADOPTED, place)
    return place - start


@kernel(inline=True)
def _commit_record(g: Any, book: int, record: int, streams: int, changes: Any) -> bool:
    """Whether it is one that can be: a writer may write anything into its lane, and into nothing
    else of the owner's.
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
    settle(g, name, stream, flags, changes)
    if flags & FINAL == 0:
        poke64(book + grant_log.STEPPED, peek64(book + grant_log.STEPPED) + 1)
    return True


@kernel(inline=True)
def _next_row(g: Any, book: int) -> int:
    """The id of the next row in the order in which they were granted, which is not held any more."""
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
    """Rows that were granted and will not be filled: nothing is there until the order comes round
    again.
    """
    _give_up(g, book, peek64(book + grant_log.HELD))


@kernel(keeps_gil=True)
def news(ledgers: Any) -> bool:
    """Whether records were published and not adopted."""
    for i in range(len(ledgers)):
        book = ledgers[i]
        lane = peek64(book + grant_log.LANE)
        if (
            load(lane + ring_format.PUBLISHED) != peek64(book + grant_log.ADOPTED)
            and peek64(book + grant_log.WRONG) == 0
        ):
            return True
    return False


@kernel(keeps_gil=True)
def room_ahead(g: Any, most: int, changes: Any) -> int:
    """How many of the next ``most`` rows are free. If less than two are, these are passed by.

    What passes over many held rows at once may see an item die and another one be born in the same
    row; see `write`.
    """
    free = 0
    for k in range(most):
        free += peek8(g[HELD] + (g[CURSOR] + k) % g[ROWS]) == 0
    if free < 2:
        for _ in range(most):
            retire(g, g[CURSOR] - g[CAPACITY], changes)
            g[CURSOR] += 1
    return free
