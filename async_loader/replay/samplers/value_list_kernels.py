"""Lists of rows in one array, of which each has an extent: a row is added and taken out in O(1)."""

from __future__ import annotations

from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base.compiled import kernel

NONE = -1  # the list of a row that is in none

# what is known of each list: the first place of its extent, the places there, and its rows
START, ROOM, COUNT = 0, 1, 2
# where the list stands among those that have rows; and in the same array the lists that have rows
AT, FILLED = 3, 4
KNOWN = 5

# of all lists: the places that extents take, and the lists that have rows
USED, LISTS = 0, 1


@kernel(inline=True)
def _take(pool: Ids, totals: Ids, lists: Ids, list_of: Ids, place: Ids, row: int) -> None:
    """Take a row out of its list; the last one there takes its place."""
    mine = list_of[row]
    lists[COUNT, mine] -= 1
    last = pool[lists[START, mine] + lists[COUNT, mine]]
    pool[lists[START, mine] + place[row]] = last
    place[last] = place[row]
    list_of[row] = NONE
    if lists[COUNT, mine] == 0:
        totals[LISTS] -= 1
        moved = lists[FILLED, totals[LISTS]]
        lists[FILLED, lists[AT, mine]] = moved
        lists[AT, moved] = lists[AT, mine]


@kernel(keeps_gil=True)
def put(
    pool: Ids, totals: Ids, lists: Ids, list_of: Ids, place: Ids, rows: Ids, into: Ids, done: int
) -> int:
    """Put each row into a list, also if it is in another, from the row ``done`` on.

    A full list moves to an extent of twice the size. Return how many rows are done: fewer than
    there are if the pool has no such extent, see `pack`.
    """
    for i in range(done, len(rows)):
        row, mine = rows[i], into[i]
        if list_of[row] == mine:
            continue
        count, start = lists[COUNT, mine], lists[START, mine]
        if count == lists[ROOM, mine]:
            room = max(2, 2 * count)
            if totals[USED] + room > len(pool):
                return i
            for k in range(count):
                pool[totals[USED] + k] = pool[start + k]
            start = totals[USED]
            lists[START, mine], lists[ROOM, mine] = start, room
            totals[USED] += room
        if list_of[row] != NONE:
            _take(pool, totals, lists, list_of, place, row)
        if count == 0:
            lists[AT, mine] = totals[LISTS]
            lists[FILLED, totals[LISTS]] = mine
            totals[LISTS] += 1
        pool[start + count] = row
        list_of[row], place[row] = mine, count
        lists[COUNT, mine] = count + 1
    return len(rows)


@kernel(keeps_gil=True)
def take(pool: Ids, totals: Ids, lists: Ids, list_of: Ids, place: Ids, rows: Ids) -> None:
    """Take rows out of their lists, except for those that are in none."""
    for row in rows:
        if list_of[row] != NONE:
            _take(pool, totals, lists, list_of, place, row)


@kernel(keeps_gil=True)
def pack(pool: Ids, scratch: Ids, totals: Ids, lists: Ids) -> None:
    """Move all extents together, each with room for half as many rows again, and one more."""
    used = 0
    for mine in range(lists.shape[1]):
        count, start = lists[COUNT, mine], lists[START, mine]
        for k in range(count):
            scratch[used + k] = pool[start + k]
        lists[START, mine] = used
        lists[ROOM, mine] = count + (count >> 1) + 1 if count else 0
        used += lists[ROOM, mine]
    for k in range(used):
        pool[k] = scratch[k]
    totals[USED] = used


@kernel(keeps_gil=True)
def choose(numbers: Floats, pool: Ids, totals: Ids, lists: Ids, rows: Ids) -> None:
    """Choose a list, and a row of it, by two numbers in [0, 1) for each row."""
    for i in range(len(rows)):
        mine = lists[FILLED, int(numbers[2 * i] * totals[LISTS])]
        rows[i] = pool[lists[START, mine] + int(numbers[2 * i + 1] * lists[COUNT, mine])]
