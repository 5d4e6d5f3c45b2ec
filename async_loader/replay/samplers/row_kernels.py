"""Kernels that choose rows, at random or by keys, and those of sum trees. They keep the GIL.

Keys are in a binary heap in an array: the parent of place i is (i - 1) // 2, and comes before its
children. What comes first: the smaller key; of equal keys, the one that was set longer ago.

A sum tree is an array too, with eight children to a node: node 7 is the root, the children of n
are 8 (n - 6) and the seven nodes behind it, so that they share a cache line. Leaves come last.
Level by level over many items: the loads of one level do not wait for each other, which is what an
item at a time does. Parents are always computed from their children, so that nothing drifts, and
the tree depends on its leaves only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import ALIVE, GIVEN, STRIDE
from async_loader.replay.kernels.machine import at_row, fetch, prefetch
from async_loader.replay.kernels.reading import copy_rows, note_priority, row_of


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


@kernel(keeps_gil=True)
def draw_and_read(
    tree: Any,
    leaves: int,
    numbers: Any,
    stratified: bool,
    base: float,
    beta: float,
    mass: Any,
    g: Any,
    rows: Any,
    fields: Any,
    plan: Any,
    ids: Any,
    weight: Any,
) -> int:
    """`choose`, `weigh` and `read` in one kernel. Returns how many items could not be read."""
    start = 0
    while start < len(ids):
        stop = choose_part(tree, leaves, numbers, stratified, rows, mass, start)
        for i in range(start, stop):  # rows come while others go down
            fetch(at_row(g, rows[i]), g[STRIDE])
        start = stop
    weigh(mass, base, beta, weight)
    none = rows[:0]
    return copy_rows(g, rows, ids, fields, plan, ids.ctypes.data, none, none)


@kernel(inline=True)
def _find(g: Any, ids: Any, rows: Any) -> None:
    """As `find`, and prefetch what `note_priority` needs of the rows."""
    for i in range(len(ids)):
        rows[i] = row_of(g, ids[i])
        if rows[i] >= 0:
            prefetch(g[GIVEN] + 8 * rows[i])
            prefetch(g[ALIVE] + rows[i])


@kernel(inline=True)
def _note(g: Any, priority: Any, rows: Any, mass: Any) -> tuple[int, int, float]:
    """See `update_by_id`. Moves the rows and masses of items to the front."""
    there, items, largest = 0, 0, -np.inf
    for i in range(len(rows)):
        row = rows[i]
        if row >= 0:
            there += 1
            if note_priority(g, row, priority[i]):
                rows[items], mass[items] = row, mass[i]
                largest = max(largest, priority[i])
                items += 1
    return there, items, largest


@kernel(keeps_gil=True)
def update_by_id(
    g: Any,
    ids: Any,
    priority: Any,
    eps: float,
    alpha: float,
    tree: Any,
    leaves: int,
    rows: Any,
    mass: Any,
    nodes: Any,
) -> tuple[int, int, float]:
    """`find` and store new priorities, `raise_to` masses, and `add_up` those of items.

    Returns how many steps are there; how many of those are items, whose rows and masses come first
    in ``rows`` and ``mass``; and the largest of their priorities. ``nodes`` is scratch.
    """
    _find(g, ids, rows)
    raise_to(priority, eps, alpha, mass)
    there, items, largest = _note(g, priority, rows, mass)
    add_up(tree, leaves, rows[:items], mass[:items], nodes, False)
    return there, items, largest


ROOT = 7
"""The node of all."""
_PART = 64  # items that go down at a time: one level of them fits the nearest cache


@kernel(inline=True, always=True)
def below(node: int) -> int:
    """Return the first child of a node."""
    return (node - 6) << 3


@kernel(inline=True, always=True)
def _child(tree: Any, node: int, k: int) -> Any:
    """Return the value of child ``k``. Unsigned, since signed indices are tested for being
    negative.
    """
    return tree[np.uint64((node - 6) << 3) + np.uint64(k)]


@kernel(inline=True, always=True)
def _pairs(tree: Any, node: int) -> Any:
    """Return the sums of a node's children, two by two."""
    return (
        _child(tree, node, 0) + _child(tree, node, 1),
        _child(tree, node, 2) + _child(tree, node, 3),
        _child(tree, node, 4) + _child(tree, node, 5),
        _child(tree, node, 6) + _child(tree, node, 7),
    )


@kernel(inline=True)
def _parents(nodes: Any, count: int) -> int:
    """Replace nodes by their parents.

    Return how many. Of neighbours with one parent, which a stratified draw has, one stays.
    """
    kept, last = 0, 0
    for i in range(count):
        node = (nodes[i] >> 3) + 6
        kept += node != last
        nodes[kept - 1] = last = node
    return kept


@kernel(keeps_gil=True)
def add_up(tree: Any, leaves: int, rows: Any, values: Any, nodes: Any, least: bool) -> None:
    """Set leaves, of which the first is node ``leaves``, and the sums above them, or the ``least``
    below.

    Of a row that occurs twice the last value counts. ``nodes`` is scratch.
    """
    for i in range(len(rows)):
        nodes[i] = leaves + rows[i]
        tree[nodes[i]] = values[i]
    level, count = leaves, len(rows)
    while level > ROOT:
        level = (level >> 3) + 6
        count = _parents(nodes, count)
        for i in range(count):
            node = nodes[i]
            if least:
                value = _child(tree, node, 0)
                for k in range(1, 8):
                    value = min(value, _child(tree, node, k))
            else:
                a, b, c, d = _pairs(tree, node)
                value = (a + b) + (c + d)
            tree[np.uint64(node)] = value


@kernel(inline=True)
def _descend(tree: Any, leaves: int, masses: Any, rows: Any, values: Any) -> None:
    """Find the leaves in which ``masses`` of the total, which is above 0, fall, and their values,
    which may replace the masses.

    A leaf of 0 is never reached: rounding may carry a mass past the last leaf of a subtree, but not
    into one without mass. Eight children are halved three times, by sums that are selected and not
    branched for, since branches would be mispredicted half the time. The next level's children are
    prefetched: with two children to a node 25 us in place of 13 for 256 of a million, if the lower
    levels have left the cache.
    """
    for i in range(len(rows)):
        rows[i] = ROOT
    level, base = ROOT, tree.ctypes.data
    while level < leaves:
        level = below(level)
        for i in range(len(rows)):
            node, mass = rows[i], masses[i]
            a, b, c, d = _pairs(tree, node)
            left = a + b
            right = (mass >= left) & (c + d > 0.0)
            mass = mass - left if right else mass
            left = c if right else a
            rest = d if right else b
            k = 4 * right
            right = (mass >= left) & (rest > 0.0)
            mass = mass - left if right else mass
            k += 2 * right
            left = _child(tree, node, k)
            right = (mass >= left) & (_child(tree, node, k + 1) > 0.0)
            masses[i] = mass - left if right else mass
            rows[i] = below(node) + k + right
            if level < leaves:
                prefetch(base + 8 * below(rows[i]))
    for i in range(len(rows)):
        values[i] = tree[np.uint64(rows[i])]
        rows[i] -= leaves


@kernel(inline=True)
def choose_part(
    tree: Any, leaves: int, numbers: Any, stratified: bool, rows: Any, mass: Any, start: int
) -> int:
    """Find some dozens of the rows and masses of `choose` from ``start`` on.

    Return the start of the next part.
    """
    total, count = tree[ROOT], len(rows)
    stop = min(start + _PART, count)
    for i in range(start, stop):
        mass[i] = (i + numbers[i]) * (total / count) if stratified else numbers[i] * total
    _descend(tree, leaves, mass[start:stop], rows[start:stop], mass[start:stop])
    return stop


@kernel(keeps_gil=True)
def choose(tree: Any, leaves: int, numbers: Any, stratified: bool, rows: Any, mass: Any) -> None:
    """Draw rows in proportion to their leaves, one from each of equal parts or independently.

    Return the leaves' values too.
    """
    start = 0
    while start < len(rows):
        start = choose_part(tree, leaves, numbers, stratified, rows, mass, start)


@kernel(keeps_gil=True)
def weigh(mass: Any, base: float, beta: float, weight: Any) -> None:
    """Compute ``(base / mass) ** beta``; a base of 0 is the least mass."""
    if base <= 0.0:
        base = mass[0]
        for i in range(1, len(mass)):
            base = min(base, mass[i])
    for i in range(len(mass)):
        weight[i] = (base / mass[i]) ** beta


@kernel(keeps_gil=True)
def raise_to(priority: Any, eps: float, alpha: float, mass: Any) -> None:
    """Compute ``(priority + eps) ** alpha``, 0 for 0 whatever the exponent."""
    for i in range(len(priority)):
        shifted = priority[i] + eps
        mass[i] = shifted**alpha if alpha > 0.0 else 1.0 * (shifted > 0.0)


@kernel(keeps_gil=True)
def first_refused(priority: Any, largest: float, may_lack: bool) -> int:
    """Return the position of the first priority that is not a number from 0 to ``largest`` (nor,
    with ``may_lack``, NaN); -1 if all are.
    """
    for i in range(len(priority)):
        p = priority[i]
        if not (p >= 0.0 and p <= largest) and not (may_lack and p != p):
            return i
    return -1
