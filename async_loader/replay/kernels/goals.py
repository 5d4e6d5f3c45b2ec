"""Chooses hindsight goals, without a lock: walks the links of an episode's rows.

A chosen row is checked after it was copied, each link before it is followed; see NOTE [row lock].
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import goal_table as t
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.row_format import (
    BASE,
    ENDS,
    FINAL,
    FLAGS,
    NEXT,
    PREV,
    ROWS,
    STRIDE,
    VERSION_ONE,
)
from async_loader.replay.kernels.linked_rows import neighbour
from async_loader.replay.kernels.machine import after_loads, copy, load, prefetch
from async_loader.replay.kernels.reading import same_rows
from async_loader.replay.kernels.row_address import at, holds

_NONE, _GONE = -1, -2
_STEPS_AHEAD = 8


@kernel(inline=True)
def _followed(g: Any, row: int, name: int, link: int) -> tuple[int, int]:
    """Return the row and the id that a row links to: `_NONE` without a link, or `_GONE`."""
    address = g[BASE] + row * g[STRIDE]
    other = load(address + link)
    if not holds(address, name):
        return row, _GONE
    if other < 0:
        return row, _NONE
    found = neighbour(row, name, other, g[ROWS])
    return found, other if holds(g[BASE] + found * g[STRIDE], other) else _GONE


@kernel(inline=True)
def _fetch_on(g: Any, row: int, found: int, first: bool) -> None:
    """Begin to load a row that is visited later: they mostly lie as far from each other as
    ``found`` does from ``row``. At the first step of a walk, all up to that one.
    """
    step = found - row
    for ahead in range(2 if first else _STEPS_AHEAD, _STEPS_AHEAD + 1):
        place = row + ahead * step
        if 0 <= place < g[ROWS]:
            prefetch(g[BASE] + place * g[STRIDE])


@kernel(inline=True)
def _first(g: Any, row: int, name: int) -> tuple[int, int]:
    """Return the oldest row of an episode that is still there, and its id."""
    first = True
    while True:
        found, other = _followed(g, row, name, PREV)
        if other < 0:
            return row, name
        _fetch_on(g, row, found, first)
        first, row, name = False, found, other


@kernel(inline=True)
def _chosen(g: Any, name: int, chance: float, shape: Any, marks: Any) -> tuple[int, int]:
    """Return the id of the row whose achieved goal is the new one, and how many rows were visited.

    `_NONE`: the episode has none. `_GONE`: a row went meanwhile.

    ``marks``: the ids of every ``apart``-th of the goals, so that the chosen one is found again.
    """
    base, stride, rows, following = g[BASE], g[STRIDE], g[ROWS], shape[t.FOLLOWING] != 0
    row = name % rows
    if shape[t.STRATEGY] == t.EPISODE:
        row, name = _first(g, row, name)
    count, due, apart, kept = 0, 0, 1, 0
    visited = 0
    if not following:
        marks[0] = name
        count = due = kept = 1
    while True:
        visited += 1
        flags = load(base + row * stride + FLAGS)
        if flags & FINAL or (not following and flags & ENDS):
            break
        found, other = _followed(g, row, name, NEXT)
        if other == _GONE:
            return _GONE, visited
        if other == _NONE:
            break
        if not following and load(base + found * stride + FLAGS) & FINAL:
            break
        _fetch_on(g, row, found, visited == 1)
        row, name = found, other
        if count == due:
            if kept == len(marks):
                kept //= 2
                for k in range(kept):
                    marks[k] = marks[2 * k]
                apart *= 2
            marks[kept] = name
            kept += 1
            due += apart
        count += 1
    if count == 0:
        return _NONE, visited
    if shape[t.STRATEGY] == t.FINAL_GOAL:
        return name, visited
    place = min(count - 1, int(chance * count))
    name = marks[place // apart]
    row = name % rows
    for _ in range(place % apart):
        visited += 1
        row, name = _followed(g, row, name, NEXT)
        if name < 0:
            return _GONE, visited
    return name, visited


@kernel(inline=True)
def _copy_goal(
    g: Any, fields: Any, i: int, chosen: int, shape: Any, names: Any, steps: int
) -> bool:
    """Copy the new goal of item ``i``, and what its steps have achieved.

    Return whether the goal's row was there meanwhile.
    """
    address = at(g, chosen)
    stamp = load(address + FLAGS)
    if stamp & VERSION_ONE or not holds(address, chosen):
        return False
    first = shape[t.BEFORE] - 1
    for f in range(len(fields)):
        count, source = fields[f, NBYTES], fields[f, ROW_ADDRESS]
        target = fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
        if f == t.GOAL:
            copy(target, source + chosen % g[ROWS] * fields[f, ROW_STRIDE], count)
            continue
        place = first + (shape[t.FOLLOWING] if f == t.ACHIEVED else 0)
        for k in range(steps):
            copy(target, source + names[place + k] % g[ROWS] * fields[f, ROW_STRIDE], count)
            target += count
    after_loads()
    return holds(address, chosen) and load(address + FLAGS) == stamp


@kernel(inline=True)
def _choose_goals(
    g: Any,
    chances: Any,
    fraction: float,
    shape: Any,
    fields: Any,
    names: Any,
    stamps: Any,
    taken: Any,
    marks: Any,
    relabelled: Any,
) -> int:
    first, following, visited = shape[t.BEFORE] - 1, shape[t.FOLLOWING], 0
    for i in range(len(taken)):
        relabelled[i] = 0
        if taken[i] == 0 or chances[i] >= fraction:
            continue
        last = first + taken[i] - 1
        # it terminated without an observation after it: what it achieved is unknown
        if following and names[i, last + 1] == names[i, last]:
            continue
        chosen, more = _chosen(g, names[i, first], chances[i] / fraction, shape, marks)
        visited += more
        if chosen == _NONE:
            continue
        if (
            chosen >= 0
            and _copy_goal(g, fields, i, chosen, shape, names[i], taken[i])
            and same_rows(g, names[i], stamps[i], last + following)
        ):
            relabelled[i] = 1
        else:
            taken[i] = 0
    return visited


@kernel(keeps_gil=True)
def choose_goals(
    g: Any,
    chances: Any,
    fraction: float,
    shape: Any,
    fields: Any,
    names: Any,
    stamps: Any,
    taken: Any,
    marks: Any,
    relabelled: Any,
) -> int:
    """Choose new goals for items that `walk` found, and copy them with what the steps achieved.

    Sets ``taken`` to 0 for items that went meanwhile, and ``relabelled [items]`` to 1 for those
    with a new goal. Returns how many rows were visited.

    Parameters
    ----------
    chances : float64 array [items]
        In [0, 1): below ``fraction`` a goal is replaced, and what it is of ``fraction`` chooses.
    shape, fields, marks
        See goal_table.py. ``fields``: the array of ``GOAL`` is ``[items, *goal]``, the others are
        ``[items, n, ...]``; ``marks``: scratch.
    """
    return _choose_goals(
        g, chances, fraction, shape, fields, names, stamps, taken, marks, relabelled
    )


@kernel()
def choose_far_goals(
    g: Any,
    chances: Any,
    fraction: float,
    shape: Any,
    fields: Any,
    names: Any,
    stamps: Any,
    taken: Any,
    marks: Any,
    relabelled: Any,
) -> int:
    """As `choose_goals`, for long episodes: releases the GIL."""
    return _choose_goals(
        g, chances, fraction, shape, fields, names, stamps, taken, marks, relabelled
    )
