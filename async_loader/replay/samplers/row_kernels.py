"""Kernels that choose rows, at random or by keys. They keep the GIL.

Keys are in a binary heap in an array: the parent of place i is (i - 1) // 2, and comes before its
children. What comes first: the smaller key; of equal keys, the one that was set longer ago.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.errors import Broken
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.compiled import kernel
from async_loader.replay.samplers.binding import RandomNumbers
from async_loader.replay.samplers.sampler import Items, Rows


@kernel(inline=True)
def _first(keys: Any, ages: Any, a: int, b: int) -> bool:
    return bool(keys[a] < keys[b] or (keys[a] == keys[b] and ages[a] < ages[b]))


@kernel(inline=True)
def _up(heap: Any, places: Any, keys: Any, ages: Any, place: int) -> None:
    row = heap[place]
    while place > 0:
        above = (place - 1) >> 1
        if not _first(keys, ages, row, heap[above]):
            break
        heap[place] = heap[above]
        places[heap[place]] = place
        place = above
    heap[place] = row
    places[row] = place


@kernel(inline=True)
def _down(heap: Any, places: Any, keys: Any, ages: Any, place: int, size: int) -> None:
    row = heap[place]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _first(keys, ages, heap[below + 1], heap[below]):
            below += 1
        if not _first(keys, ages, heap[below], row):
            break
        heap[place] = heap[below]
        places[heap[place]] = place
        place = below
    heap[place] = row
    places[row] = place


@kernel(keeps_gil=True)
def put(heap: Any, places: Any, keys: Any, ages: Any, counts: Any, rows: Any, values: Any) -> None:
    """Set keys of rows, in the heap or not.

    ``counts``: the size of the heap, and the age of the first key, which counts up.
    """
    size = counts[0]
    for i in range(len(rows)):
        row = rows[i]
        keys[row], ages[row] = values[i], counts[1] + i
        if places[row] < 0:
            heap[size], places[row] = row, size
            size += 1
        _up(heap, places, keys, ages, places[row])
        _down(heap, places, keys, ages, places[row], size)
    counts[0] = size
    counts[1] += len(rows)


@kernel(keeps_gil=True)
def take_out(heap: Any, places: Any, keys: Any, ages: Any, counts: Any, rows: Any) -> None:
    """Remove rows, wherever they are. ``counts``: as in `put`."""
    size = counts[0]
    for i in range(len(rows)):
        place = places[rows[i]]
        if place < 0:
            continue
        places[rows[i]] = -1
        size -= 1
        if place != size:
            moved = heap[size]
            heap[place], places[moved] = moved, place
            _up(heap, places, keys, ages, place)
            _down(heap, places, keys, ages, places[moved], size)
    counts[0] = size


@kernel(keeps_gil=True)
def smallest(heap: Any, places: Any, keys: Any, ages: Any, counts: Any, out: Any) -> None:
    """Find the first rows in order, as many as ``out`` holds: they are taken out, and put back.

    O(k log n).
    """
    size = counts[0]
    for k in range(len(out)):
        out[k] = heap[0]
        size -= 1
        heap[0] = heap[size]
        places[heap[0]] = 0
        _down(heap, places, keys, ages, 0, size)
    for row in out:
        heap[size], places[row] = row, size
        _up(heap, places, keys, ages, size)
        size += 1


_TRIES = 64
"""Rows that are looked at for an item, at most, where four are enough on average."""


SPARSE = 4
"""Below one item in this many rows, drawing rows and checking them takes longer than a list."""
_ALL = np.empty(0, np.int64)


def draw_any(numbers: RandomNumbers, items: Items, count: int, among: Rows | None = None) -> Rows:
    """Draw items with equal probability: from the rows ``among``, of which a quarter or more should
    hold an item, or from all; O(rows) then, if fewer than a quarter of these do.

    Raises Broken where hardly any does.
    """
    if among is None:
        sparse = items.count * SPARSE < items.top
        among = np.flatnonzero(items.alive[: items.top]) if sparse else _ALL
    rows, filled, candidates = np.empty(count, np.int64), 0, len(among) or items.top
    tries = 0
    while filled < count:
        if tries > _TRIES * (count + _TRIES):
            held = int(np.count_nonzero(items.alive))
            raise Broken(
                f"{tries:,} rows were drawn at random, and {filled} of them hold an item where "
                f"{count} are wanted: of {candidates:,} candidates, {held:,} rows hold one and "
                f"{items.count:,} are counted. The counts of this table are wrong: save it, and "
                "load it again, which counts anew"
            )
        ahead = numbers.ahead(count - filled)
        filled, used = any_items(ahead, items.alive, among, candidates, rows, filled)
        numbers.drop(used)
        tries += used
    return rows


@kernel(keeps_gil=True)
def any_items(
    numbers: Array, alive: Array, listed: Ids, candidates: int, rows: Ids, filled: int
) -> tuple[int, int]:
    """Fill ``rows`` from ``filled`` on with rows that hold an item, each with equal probability.

    Candidates are the rows below ``candidates``, or that many listed rows. Scaling 53 random bits
    is off uniform by less than candidates / 2**53, and the largest number below 1 rounds to below
    ``candidates``.

    Returns
    -------
    int, int
        Rows that are filled; numbers that were used.
    """
    used = 0
    while filled < len(rows) and used < len(numbers):
        row = int(numbers[used] * candidates)
        if len(listed):
            row = listed[row]
        used += 1
        if alive[row]:
            rows[filled] = row
            filled += 1
    return filled, used
