"""Kernels that draw and read, or find and update by priorities, in one call.

They keep the GIL, under the table's lock.

They combine the steps of the samplers' tree and of the table's rows, in an order in which one
computes while the other waits for memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import ALIVE, DIRTY, GIVEN
from async_loader.replay.kernels.items import note_priority
from async_loader.replay.kernels.machine import prefetch
from async_loader.replay.kernels.reading import copy_rows, row_of
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
    plan: Any,
    ids: Any,
    weight: Any,
) -> int:
    """`choose`, `weigh` and `read` in one kernel. Returns how many items could not be read."""
    start = 0
    while start < len(ids):
        start = choose_part(tree, leaves, numbers, stratified, rows, mass, start)
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
            prefetch(g[DIRTY] + rows[i])
            prefetch(g[ALIVE] + rows[i])


@kernel(inline=True)
def _note(g: Any, priority: Any, rows: Any, mass: Any) -> tuple[int, int, float]:
    """See `update`. Moves the rows and masses of items to the front."""
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
    """`find` and store new priorities, `raise_to` masses, and `add_up` those of items.

    Returns how many steps are there; how many of those are items, whose rows and masses come first
    in ``rows`` and ``mass``; and the largest of their priorities. ``nodes`` is scratch.
    """
    _find(g, ids, rows)
    raise_to(priority, eps, alpha, mass)
    there, items, largest = _note(g, priority, rows, mass)
    add_up(tree, leaves, rows[:items], mass[:items], nodes, False)
    return there, items, largest
