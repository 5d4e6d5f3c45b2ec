"""Finds the steps of an episode by their position, without a lock.

A reader follows the links of an episode once, and keeps its ids; see base/episode_lists.py. An id
is never used for another step, and the links of a step are set once, so that what was found stays
true until the table is emptied. Whether a row is still there is checked when it is read.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    CLOSED,
    COUNT,
    END,
    FIRST,
    HEAD,
    PLACE_BITS,
    SIZE,
    SPARE,
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
)
from async_loader.replay.kernels.machine import load, prefetch
from async_loader.replay.kernels.row_address import fetch_run, holds, neighbour, there

NONE, GONE = -1, -2
_STEPS_AHEAD = 8
_POSITION = (1 << PLACE_BITS) - 1


@kernel(inline=True)
def find_place(places: Any, lists: Any, row: int, name: int) -> tuple[int, int]:
    """Return the head of the list that holds an id, and the id's position; `NONE` without one."""
    head, position = places[row] >> PLACE_BITS, places[row] & _POSITION
    if position < lists[head + COUNT] and lists[head + HEAD + position] == name:
        return head, position
    return NONE, 0


@kernel(inline=True)
def fetch_place(g: Any, places: Any, name: int) -> None:
    """Begin to load the place of an id."""
    prefetch(places.ctypes.data + 8 * (name % g[ROWS]))


@kernel(inline=True)
def fetch_list(g: Any, places: Any, lists: Any, name: int) -> None:
    """Begin to load what `find_place` looks at, after `fetch_place`."""
    place = places[name % g[ROWS]]
    head = lists.ctypes.data + 8 * (place >> PLACE_BITS)
    prefetch(head)
    prefetch(head + 8 * (HEAD + (place & _POSITION)))


@kernel(inline=True)
def _followed(g: Any, row: int, name: int, link: int) -> tuple[int, int]:
    """Return the row and the id that a row links to: `NONE` without a link, or `GONE`."""
    address = g[BASE] + row * g[STRIDE]
    other = load(address + link)
    if not holds(address, name):
        return row, GONE
    if other < 0:
        return row, NONE
    found = neighbour(row, name, other, g[ROWS])
    return found, other if holds(g[BASE] + found * g[STRIDE], other) else GONE


@kernel(inline=True)
def _fetch_on(g: Any, row: int, found: int, walked: bool) -> None:
    """Begin to load a row that is visited later; at the first step of a walk, all up to it."""
    fetch_run(g, row, found - row, _STEPS_AHEAD if walked else 2, _STEPS_AHEAD, 1)


@kernel(inline=True)
def _begin(places: Any, lists: Any, size: int) -> int:
    """Begin a list of this many words, its head included. Return its head."""
    if lists[END] + size > len(lists):
        for row in range(len(places)):
            places[row] = 0
        lists[END] = HEAD
    head = lists[END]
    lists[END] += size
    lists[head + SIZE] = size
    lists[head + COUNT] = lists[head + FIRST] = lists[head + CLOSED] = 0
    return head


@kernel(inline=True)
def _grow(g: Any, places: Any, lists: Any, head: int) -> int:
    """Make room for more ids. Return the head of the list, which may have moved."""
    size = lists[head + SIZE]
    if head + size == lists[END] and lists[END] + size <= len(lists):
        lists[END] += size
        lists[head + SIZE] = 2 * size
        return head
    first, count = lists[head + FIRST], lists[head + COUNT]
    while first < count and not there(g, lists[head + HEAD + first]):
        first += 1
    count -= first
    lists[head + COUNT] = 0
    moved = _begin(places, lists, HEAD + SPARE + count + count // 2)
    # upwards: the new list may overlap the old one, and then begins before it
    for k in range(count):
        name = lists[head + HEAD + first + k]
        lists[moved + HEAD + k] = name
        places[name % g[ROWS]] = moved << PLACE_BITS | k
    lists[moved + COUNT] = count
    return moved


@kernel(inline=True)
def _add(g: Any, places: Any, lists: Any, head: int, row: int, name: int) -> int:
    """Add an id to a list. Return the head of the list, which may have moved."""
    if HEAD + lists[head + COUNT] == lists[head + SIZE]:
        head = _grow(g, places, lists, head)
    count = lists[head + COUNT]
    lists[head + HEAD + count] = name
    places[row] = head << PLACE_BITS | count
    lists[head + COUNT] = count + 1
    return head


@kernel(inline=True)
def _close(lists: Any, head: int) -> None:
    """Note that no id will follow, and give back the room of the newest list."""
    lists[head + CLOSED] = 1
    if head + lists[head + SIZE] == lists[END]:
        lists[head + SIZE] = HEAD + max(1, lists[head + COUNT])
        lists[END] = head + lists[head + SIZE]


@kernel(inline=True)
def _extend(g: Any, places: Any, lists: Any, head: int, following: bool) -> bool:
    """Add the ids that follow the last of a list. Return whether none of their rows was gone."""
    name, walked = lists[head + HEAD + lists[head + COUNT] - 1], False
    row = name % g[ROWS]
    while True:
        flags = load(g[BASE] + row * g[STRIDE] + FLAGS)
        found, other = _followed(g, row, name, NEXT)
        if other == GONE:
            return False
        if flags & FINAL and not following:  # a step that became the observation after one
            lists[head + COUNT] -= 1
        if flags & FINAL or (flags & ENDS and not following):
            break
        if other == NONE:
            return True
        if not following and load(g[BASE] + found * g[STRIDE] + FLAGS) & FINAL:
            break
        _fetch_on(g, row, found, walked)
        row, name, walked = found, other, True
        head = _add(g, places, lists, head, row, name)
    _close(lists, head)
    return True


@kernel(inline=True)
def _list_before(g: Any, places: Any, lists: Any, row: int, name: int) -> int:
    """Find or begin the list that an id belongs to, from an earlier id of its episode on. Return
    its head.
    """
    walked = 0
    while True:
        found, other = _followed(g, row, name, PREV)
        if other < 0:
            head = _begin(places, lists, HEAD + SPARE + walked + 1)
            return _add(g, places, lists, head, row, name)
        _fetch_on(g, row, found, walked > 0)
        row, name, walked = found, other, walked + 1
        head, _ = find_place(places, lists, row, name)
        if head >= 0:
            return head


@kernel(inline=True)
def find_step(
    g: Any, places: Any, lists: Any, row: int, name: int, following: bool
) -> tuple[int, int]:
    """Return the head of the list of an episode's ids, and the position of this one; `GONE` in
    place of the head where a row went.

    ``following``: the observation after the last step has a place in the list.
    """
    head, position = find_place(places, lists, row, name)
    if head >= 0 and lists[head + CLOSED]:
        return head, position
    if head < 0:
        head = _list_before(g, places, lists, row, name)
    whole = _extend(g, places, lists, head, following)
    head, position = find_place(places, lists, row, name)  # the list may have moved
    return (head if head >= 0 and whole else GONE), position


@kernel(inline=True)
def first_there(g: Any, lists: Any, head: int, position: int) -> int:
    """Return the position of the oldest id of a list whose row is still there; ``position``'s is.

    Amortised O(1): rows go in the order in which they came.
    """
    first = lists[head + FIRST]
    while first < position and not there(g, lists[head + HEAD + first]):
        first += 1
    lists[head + FIRST] = first
    return first
