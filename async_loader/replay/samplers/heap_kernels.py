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
def arrange(heap: Any, places: Any, rows: Any) -> None:
    """Let the heap hold these rows, which are in a heap's order."""
    for place in range(len(rows)):
        heap[place] = rows[place]
        places[rows[place]] = place


@kernel(keeps_gil=True)
def smallest(
    heap: Any, keys: Any, ages: Any, size: int, out: Any, frontier: Any, spots: Any
) -> None:
    """Find the first rows in order, as many as ``out`` holds.

    O(k log k), whatever the size of the heap, which stays as it is.

    ``frontier [len(out) + 1]`` is a heap of rows whose parents are in ``out``; ``spots``: the place
    of each row in ``heap``.
    """
    frontier[0] = heap[0]
    waiting = 1
    for k in range(len(out)):
        row = frontier[0]
        out[k] = row
        waiting -= 1
        frontier[0] = frontier[waiting]
        _sink(frontier, keys, ages, waiting)
        for below in (2 * spots[row] + 1, 2 * spots[row] + 2):
            if below < size and waiting < len(frontier):
                frontier[waiting] = heap[below]
                waiting += 1
                _rise(frontier, keys, ages, waiting - 1)


@kernel(inline=True)
def _rise(rows: Any, keys: Any, ages: Any, place: int) -> None:
    while place > 0 and _first(keys, ages, rows[place], rows[(place - 1) >> 1]):
        above = (place - 1) >> 1
        rows[place], rows[above] = rows[above], rows[place]
        place = above


@kernel(inline=True)
def _sink(rows: Any, keys: Any, ages: Any, size: int) -> None:
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _first(keys, ages, rows[below + 1], rows[below]):
            below += 1
        if not _first(keys, ages, rows[below], rows[place]):
            break
        rows[place], rows[below] = rows[below], rows[place]
        place = below
