"""Chooses hindsight goals, without a lock. Readers see whether a chosen row is still there.

A reader follows the links of an episode once, and lists the ids of its steps. An id is never used
for another step, and the links of a step are set once, so that a list stays true until the table is
emptied. That of an open episode is made again when more steps have come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import ENDS, FINAL, FLAGS, NEXT, PREV, ROWS
from async_loader.replay.kernels.machine import (
    at_row,
    fetch_run,
    holds,
    load,
    neighbour,
    prefetch,
    there,
)

COUNT, WHOLE = 0, 1
"""Words of a list's head: its ids; whether no id will follow."""
END = 1  # of an empty list at the beginning: where the next list begins
HEAD = 2
"""Words of a head."""
PLACE_BITS = 31
"""A place is the word of the head, shifted, and the position of the id in the list."""
FUTURE, FINAL_GOAL, EPISODE = range(3)
NONE, GONE = -1, -2
_POSITION = (1 << PLACE_BITS) - 1
_AHEAD = 8
"""Items, or steps of a walk, from the request of what one needs to its use."""


def new_lists(rows: int) -> tuple[Ids, Ids]:
    """Return ``places [rows]`` and ``lists``. Their pages are provided as they are written."""
    lists = np.zeros(3 * rows + 2 * HEAD, np.int64)
    lists[END] = HEAD
    return np.zeros(rows, np.int64), lists


@kernel(inline=True)
def _followed(g: Any, row: int, name: int, link: int) -> tuple[int, int]:
    """Return the row and the id that a row links to: `NONE` without a link, or `GONE`."""
    other = load(at_row(g, row) + link)
    if not holds(at_row(g, row), name):
        return row, GONE
    if other < 0:
        return row, NONE
    found = neighbour(row, name, other, g[ROWS])
    fetch_run(g, row, found - row, _AHEAD, _AHEAD, 1)
    return found, other if holds(at_row(g, found), other) else GONE


@kernel(inline=True)
def _list(g: Any, places: Any, lists: Any, row: int, name: int, following: bool) -> bool:
    """List the ids of an episode, from the oldest step that is there on. Return whether none of
    the rows after that was gone.
    """
    found, other = _followed(g, row, name, PREV)
    while other >= 0:
        row, name = found, other
        found, other = _followed(g, row, name, PREV)
    if lists[END] > 2 * len(places):
        for i in range(len(places)):
            places[i] = 0
        lists[END] = HEAD
    head, count, whole = lists[END], 0, False
    lists[head + COUNT] = 0
    while not whole and count < len(places):
        flags = load(at_row(g, row) + FLAGS)
        found, other = _followed(g, row, name, NEXT)
        if other == GONE:
            return False
        if following or flags & FINAL == 0:  # else a step that became the observation after one
            lists[head + HEAD + count] = name
            places[row] = head << PLACE_BITS | count
            count += 1
        whole = flags & FINAL != 0 or (flags & ENDS != 0 and not following)
        if other == NONE:
            break
        if not following and load(at_row(g, found) + FLAGS) & FINAL:
            whole = True
        row, name = found, other
    lists[head + COUNT], lists[head + WHOLE] = count, whole
    lists[END] = head + HEAD + count
    return True


@kernel(inline=True)
def _find_place(places: Any, lists: Any, row: int, name: int) -> tuple[int, int]:
    """Return the head of the list that holds an id, and the id's position; `NONE` without one."""
    head, position = places[row] >> PLACE_BITS, places[row] & _POSITION
    if position < lists[head + COUNT] and lists[head + HEAD + position] == name:
        return head, position
    return NONE, 0


@kernel(inline=True)
def _find_step(g: Any, places: Any, lists: Any, name: int, following: bool) -> tuple[int, int]:
    """Return the head of the list of an episode's ids, and the position of this one; negative in
    place of the head where a row went.

    ``following``: the observation after the last step has a place in the list.
    """
    row = name % g[ROWS]
    head, position = _find_place(places, lists, row, name)
    if head >= 0:
        if lists[head + WHOLE]:
            return head, position
        last = lists[head + HEAD + lists[head + COUNT] - 1]
        final = load(at_row(g, last % g[ROWS]) + FLAGS) & FINAL
        if _followed(g, last % g[ROWS], last, NEXT)[1] == NONE and not final:
            return head, position
    if not _list(g, places, lists, row, name, following):
        return GONE, 0
    return _find_place(places, lists, row, name)


@kernel(inline=True)
def _first_there(g: Any, lists: Any, head: int, position: int) -> int:
    """Return the position of the oldest id of a list whose row is still there; ``position``'s is.

    Rows go in the order in which they came.
    """
    low = 0
    while low < position:
        middle = (low + position) // 2
        if there(g, lists[head + HEAD + middle]):
            position = middle
        else:
            low = middle + 1
    return low


@kernel(inline=True)
def _chosen(
    g: Any, places: Any, lists: Any, name: int, chance: float, strategy: int, following: bool
) -> int:
    """Return the id of the row whose achieved goal is the new one. `NONE`: the episode has none.
    `GONE`: a row went meanwhile.
    """
    head, first = _find_step(g, places, lists, name, following)
    if head < 0:
        return GONE
    if strategy == EPISODE:
        first = _first_there(g, lists, head, first)
    first += following
    count = lists[head + COUNT] - first
    if count <= 0:
        return NONE
    place = count - 1
    if strategy != FINAL_GOAL:
        place = min(place, int(chance * count))
    return lists[head + HEAD + first + place]


@kernel(keeps_gil=True)
def choose_goals(
    g: Any,
    ids: Any,
    chances: Any,
    fraction: float,
    strategy: int,
    following: bool,
    places: Any,
    lists: Any,
    goals: Any,
) -> None:
    """Fill in the ids of the rows with the new goals of items, `NONE` for items that keep theirs,
    `GONE` where a row went.

    Parameters
    ----------
    chances : float64 array [items]
        In [0, 1): below ``fraction`` a goal is replaced, and what it is of ``fraction`` chooses.
    following : bool
        What a step has achieved is in the row after it.
    places, lists
        See `new_lists`.
    """
    for i in range(-2 * _AHEAD, len(ids)):
        if i + 2 * _AHEAD < len(ids):
            prefetch(places.ctypes.data + 8 * (ids[i + 2 * _AHEAD] % g[ROWS]))
        if 0 <= i + _AHEAD < len(ids):
            place = places[ids[i + _AHEAD] % g[ROWS]]
            head = lists.ctypes.data + 8 * (place >> PLACE_BITS)
            prefetch(head)
            prefetch(head + 8 * (HEAD + (place & _POSITION)))
        if i < 0:
            continue
        goals[i] = NONE
        if ids[i] >= 0 and chances[i] < fraction:
            chance = chances[i] / fraction
            goals[i] = _chosen(g, places, lists, ids[i], chance, strategy, following)
