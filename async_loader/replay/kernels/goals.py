"""Chooses hindsight goals, without a lock. Readers see whether a chosen row is still there."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import COUNT, HEAD
from async_loader.replay.base.row_format import ROWS
from async_loader.replay.kernels.episode_lists import (
    GONE,
    NONE,
    fetch_list,
    fetch_place,
    find_step,
    first_there,
)

FUTURE, FINAL_GOAL, EPISODE = range(3)
_AHEAD = 8
"""Items, from the request of what an item needs to its use."""


@kernel(inline=True)
def _chosen(
    g: Any, places: Any, lists: Any, name: int, chance: float, strategy: int, following: bool
) -> int:
    """Return the id of the row whose achieved goal is the new one. `NONE`: the episode has none.
    `GONE`: a row went meanwhile.
    """
    head, first = find_step(g, places, lists, name % g[ROWS], name, following)
    if head < 0:
        return GONE
    if strategy == EPISODE:
        first = first_there(g, lists, head, first)
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
        See base/episode_lists.py.
    """
    for i in range(-2 * _AHEAD, len(ids)):
        if i + 2 * _AHEAD < len(ids):
            fetch_place(g, places, ids[i + 2 * _AHEAD])
        if 0 <= i + _AHEAD < len(ids):
            fetch_list(g, places, lists, ids[i + _AHEAD])
        if i < 0:
            continue
        goals[i] = NONE
        if ids[i] >= 0 and chances[i] < fraction:
            chance = chances[i] / fraction
            goals[i] = _chosen(g, places, lists, ids[i], chance, strategy, following)
