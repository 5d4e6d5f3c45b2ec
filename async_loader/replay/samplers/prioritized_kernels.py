"""Drawing and reading, finding and updating by priorities in one call each. Kernels that keep the GIL, under the table's lock.

Put together from what the samplers' tree and the table's rows do one by one, in an order in which the one computes while
the other waits for memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.compiled import kernel
from async_loader.replay.kernels.machine import prefetch
from async_loader.replay.kernels.places import at
from async_loader.replay.kernels.reading import copy_rows, row_of
from async_loader.replay.kernels.writing import note_priority
from async_loader.replay.rows import ALIVE, DIRTY, GIVEN, ROWS
from async_loader.replay.samplers.tree_kernels import add_up, choose_part, raise_to, weigh


@kernel(keeps_gil=True)
def draw(
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
    ids: Any,
    weight: Any,
) -> None:
    """`choose`, `weigh` and `read_rows`."""
    start = 0
    while start < len(ids):
        start = choose_part(tree, leaves, numbers, stratified, rows, mass, start)
    weigh(mass, base, beta, weight)
    copy_rows(g, rows, fields, ids)


@kernel(inline=True)
def _fetch(g: Any, ids: Any) -> None:
    """Begin to load what `note` looks at."""
    for i in range(len(ids)):
        if ids[i] >= 0:
            row = ids[i] % g[ROWS]
            prefetch(at(g, ids[i]))
            prefetch(g[GIVEN] + 8 * row)
            prefetch(g[DIRTY] + row)
            prefetch(g[ALIVE] + row)


@kernel(inline=True)
def _note(g: Any, ids: Any, priority: Any, rows: Any, noted: Any) -> tuple[int, int]:
    """`find` and `note_priorities`: how many are there; how many of those are items, whose rows and priorities come first."""
    there = items = 0
    for i in range(len(ids)):
        row = row_of(g, ids[i])
        if row >= 0:
            there += 1
            rows[items], noted[items] = row, priority[i]
            items += note_priority(g, row, priority[i])
    return there, items


@kernel(keeps_gil=True)
def update(
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
    """Note new priorities, and set masses: of how many that are there, of how many items, and the largest priority of these.

    ``rows`` and ``mass`` hold those of the items; ``nodes`` is scratch.
    """
    _fetch(g, ids)
    there, items = _note(g, ids, priority, rows, mass)
    largest = -np.inf
    for i in range(items):
        largest = max(largest, mass[i])
    raise_to(mass[:items], eps, alpha, mass)
    add_up(tree, leaves, rows[:items], mass[:items], nodes)
    return there, items, largest
