"""A binary heap of rows in an array: the parent of place i is (i - 1) // 2, and comes before its
children.

What comes first: the smaller key; of equal keys, the one that was set longer ago.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel


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
