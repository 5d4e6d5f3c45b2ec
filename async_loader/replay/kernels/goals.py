"""Chooses hindsight goals, without a lock.

A chosen row is checked after it was copied; see NOTE [row lock].
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import goal_table as t
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.episode_lists import COUNT, HEAD
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.row_format import FLAGS, ROWS, STRIDE, VERSION_ONE
from async_loader.replay.kernels.episode_lists import (
    GONE,
    NONE,
    fetch_list,
    fetch_place,
    find_step,
    first_there,
)
from async_loader.replay.kernels.machine import after_loads, copy, load
from async_loader.replay.kernels.reading import same_rows
from async_loader.replay.kernels.row_address import at, at_row, fetch, holds

_AHEAD = 8
"""Items, from the request of what an item needs to its use."""


@kernel(inline=True)
def _chosen(
    g: Any, places: Any, lists: Any, marks: Any, name: int, chance: float, shape: Any
) -> tuple[int, int]:
    """Return the id of the row whose achieved goal is the new one, and how many rows were visited.

    `NONE`: the episode has none. `GONE`: a row went meanwhile.
    """
    following = shape[t.FOLLOWING] != 0
    head, first, visited = find_step(g, places, lists, marks, name % g[ROWS], name, following)
    if head < 0:
        return GONE, visited
    if shape[t.STRATEGY] == t.EPISODE:
        first = first_there(g, lists, head, first)
    first += shape[t.FOLLOWING]
    count = lists[head + COUNT] - first
    if count <= 0:
        return NONE, visited
    place = count - 1
    if shape[t.STRATEGY] != t.FINAL_GOAL:
        place = min(place, int(chance * count))
    return lists[head + HEAD + first + place], visited


@kernel(inline=True)
def _copy_goal(
    g: Any, fields: Any, i: int, chosen: int, shape: Any, names: Any, steps: int
) -> bool:
    """Copy the new goal of item ``i``, and what its steps have achieved.

    Return whether the goal's row was there meanwhile.
    """
    row = chosen % g[ROWS]
    address = at_row(g, row)
    stamp = load(address + FLAGS)
    if stamp & VERSION_ONE or not holds(address, chosen):
        return False
    first = shape[t.BEFORE] - 1
    for f in range(len(fields)):
        count, source = fields[f, NBYTES], fields[f, ROW_ADDRESS]
        target = fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
        if f == t.GOAL:
            copy(target, source + row * fields[f, ROW_STRIDE], count)
            continue
        place = first + (shape[t.FOLLOWING] if f == t.ACHIEVED else 0)
        for k in range(steps):
            copy(target, source + names[place + k] % g[ROWS] * fields[f, ROW_STRIDE], count)
            target += count
    after_loads()
    return holds(address, chosen) and load(address + FLAGS) == stamp


@kernel(inline=True)
def _choose_all(
    g: Any,
    chances: Any,
    fraction: float,
    shape: Any,
    names: Any,
    taken: Any,
    places: Any,
    lists: Any,
    marks: Any,
    chosen: Any,
) -> int:
    """Choose the row of each item's new goal: `NONE` for items that keep theirs."""
    first, visited = shape[t.BEFORE] - 1, 0
    for i in range(-2 * _AHEAD, len(taken)):
        if i + 2 * _AHEAD < len(taken):
            fetch_place(g, places, names[i + 2 * _AHEAD, first])
        if 0 <= i + _AHEAD < len(taken):
            fetch_list(g, places, lists, names[i + _AHEAD, first])
        if i < 0:
            continue
        chosen[i] = NONE
        if taken[i] == 0 or chances[i] >= fraction:
            continue
        last = first + taken[i] - 1
        # it terminated without an observation after it: what it achieved is unknown
        if shape[t.FOLLOWING] and names[i, last + 1] == names[i, last]:
            continue
        chosen[i], more = _chosen(
            g, places, lists, marks, names[i, first], chances[i] / fraction, shape
        )
        visited += more
    return visited


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
    places: Any,
    lists: Any,
    marks: Any,
    chosen: Any,
    relabelled: Any,
) -> int:
    visited = _choose_all(g, chances, fraction, shape, names, taken, places, lists, marks, chosen)
    first, following = shape[t.BEFORE] - 1, shape[t.FOLLOWING]
    for i in range(-_AHEAD, len(taken)):
        if i + _AHEAD < len(taken) and chosen[i + _AHEAD] >= 0:
            fetch(at(g, chosen[i + _AHEAD]), g[STRIDE])
        if i < 0:
            continue
        relabelled[i] = 0
        if chosen[i] == NONE:
            continue
        if (
            chosen[i] >= 0
            and _copy_goal(g, fields, i, chosen[i], shape, names[i], taken[i])
            and same_rows(g, names[i], stamps[i], first + taken[i] - 1 + following)
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
    places: Any,
    lists: Any,
    marks: Any,
    chosen: Any,
    relabelled: Any,
) -> int:
    """Choose new goals for items that `walk` found, and copy them with what the steps achieved.

    Sets ``taken`` to 0 for items that went meanwhile, and ``relabelled [items]`` to 1 for those
    with a new goal. Returns how many rows were visited to find the steps of episodes.

    Parameters
    ----------
    chances : float64 array [items]
        In [0, 1): below ``fraction`` a goal is replaced, and what it is of ``fraction`` chooses.
    shape, fields
        See goal_table.py. ``fields``: the array of ``GOAL`` is ``[items, *goal]``, the others are
        ``[items, n, ...]``.
    places, lists, marks
        See base/episode_lists.py.
    chosen : int64 array [items]
        Scratch.
    """
    return _choose_goals(
        g,
        chances,
        fraction,
        shape,
        fields,
        names,
        stamps,
        taken,
        places,
        lists,
        marks,
        chosen,
        relabelled,
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
    places: Any,
    lists: Any,
    marks: Any,
    chosen: Any,
    relabelled: Any,
) -> int:
    """As `choose_goals`, where many episodes are new: releases the GIL."""
    return _choose_goals(
        g,
        chances,
        fraction,
        shape,
        fields,
        names,
        stamps,
        taken,
        places,
        lists,
        marks,
        chosen,
        relabelled,
    )
