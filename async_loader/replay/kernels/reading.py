"""Kernels on steps that are in the table. Those that read items find the rows, copy them, and check
that no writer came between.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import field_table as t
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import (
    ALIVE,
    BASE,
    CAPACITY,
    CURSOR,
    DELETED,
    DEPTH,
    FINAL,
    FLAGS,
    GIVEN,
    GIVEN_UP,
    ID,
    NEXT,
    ORDERED,
    PREV,
    ROWS,
    STRIDE,
    TAIL,
    TERMINATED,
    TOP,
    VERSION_ONE,
)
from async_loader.replay.kernels.item_fields import copy_item
from async_loader.replay.kernels.machine import (
    AHEAD,
    after_loads,
    at,
    before_stores,
    copy,
    fetch,
    fetch_run,
    get_row,
    holds,
    load,
    neighbour,
    peek8,
    poke_float,
    store,
    there,
)
from async_loader.replay.kernels.walking import Visited, unchanged, visit, walk_back, walk_on
from async_loader.replay.kernels.writing import end_item, flag, note


@kernel(inline=True)
def _user(g: Any, name: int) -> int:
    """Return the id of the first step that shows this row and is or may become an item; -1: none
    does.
    """
    for _ in range(g[DEPTH]):
        if not there(g, name):
            return -1
        if load(at(g, name) + FLAGS) & (FINAL | DELETED) == 0:
            return name
        name = load(at(g, name) + NEXT)
    return -1


@kernel(keeps_gil=True)
def room(g: Any, wanted: int) -> int:
    """Return how many rows may be written in order before one is overwritten that an item shows.

    Amortised O(1): a row that is not in use stays so, and the search continues where it ended last
    time. Where fewer than ``wanted`` are free, the oldest steps that wait for their successors
    never become items.
    """
    tail = max(g[TAIL], g[CURSOR] - g[CAPACITY])
    while tail < g[CURSOR]:
        user = _user(g, tail)
        row = user % g[ROWS]
        if user < 0:
            tail += 1
        elif peek8(g[ALIVE] + row) or tail + g[CAPACITY] - g[CURSOR] >= wanted:
            break
        else:
            flag(g, user, row, DELETED)
            g[GIVEN_UP] += 1
    g[TAIL] = tail
    return tail + g[CAPACITY] - g[CURSOR]


@kernel(keeps_gil=True)
def use_up(times: Any, rows: Any, most: int, kept: Any) -> None:
    """Count a draw of ``rows``, in order; set ``kept[i]`` to ``i`` if the item had a draw left."""
    for i in range(len(rows)):
        if times[rows[i]] < most:
            times[rows[i]] += 1
            kept[i] = i


@kernel(keeps_gil=True)
def remove(g: Any, rows: Any, changes: Any) -> None:
    """End the items of these rows, and mark pending steps as never drawable."""
    for i in range(len(rows)):
        if rows[i] >= 0:
            name = load(g[BASE] + rows[i] * g[STRIDE] + ID) - 1
            if name >= 0:
                end_item(g, name, rows[i], changes)


@kernel(inline=True)
def note_priority(g: Any, row: int, priority: float) -> bool:
    """Store the new priority of a step, see GIVEN. Return whether the step is an item."""
    if g[GIVEN]:
        poke_float(g[GIVEN] + 8 * row, -priority)
    return peek8(g[ALIVE] + row) != 0


@kernel(keeps_gil=True)
def note_priorities(g: Any, rows: Any, priority: Any) -> int:
    """Store new priorities of steps. Return how many of them are items."""
    alive = 0
    for i in range(len(rows)):
        alive += note_priority(g, rows[i], priority[i])
    return alive


@kernel(keeps_gil=True)
def turn_version(g: Any, rows: Any, odd: bool) -> None:
    """Set the versions of rows before they are patched in place (``odd``), and after.

    May be repeated. See NOTE [row lock].
    """
    before_stores()
    for i in range(len(rows)):
        if rows[i] >= 0:
            address = g[BASE] + rows[i] * g[STRIDE] + FLAGS
            if (load(address) & VERSION_ONE != 0) != odd:
                store(address, load(address) + VERSION_ONE)
            note(g, rows[i])
    before_stores()


@kernel(inline=True)
def _fetch_linked(g: Any, row: int, before: int, after: int) -> None:
    """Begin to load the rows that an item shows beside its own."""
    address, rows, stride = g[BASE] + row * g[STRIDE], g[ROWS], g[STRIDE]
    name, past, future = load(address + ID) - 1, load(address + PREV), load(address + NEXT)
    if after and future >= 0:
        fetch_run(g, row, neighbour(row, name, future, rows) - row, 1, after, stride)
    if before and past >= 0:
        fetch_run(g, row, neighbour(row, name, past, rows) - row, 1, before, stride)


@kernel(inline=True)
def _row_of(g: Any, rows: Any, ids: Any, i: int) -> int:
    """Return the row of item ``i``: ``rows`` says it, if it is not empty."""
    return rows[i] if len(rows) else ids[i] % g[ROWS]


@kernel(inline=True, always=True)
def _look(g: Any, rows: Any, ids: Any, i: int, base: int, stride: int) -> Any:
    """Return the row of item ``i``, its address, id and version, and whether it can be read. Fills
    in the id of an item that is given by its row.
    """
    row = _row_of(g, rows, ids, i)
    address = base + row * stride
    if len(rows):
        ids[i] = load(address + ID) - 1
    name, stamp = ids[i], load(address + FLAGS)
    there = name >= 0 and holds(address, name) and stamp & (VERSION_ONE | FINAL) == 0
    return row, address, name, stamp, there


@kernel(inline=True)
def _read_single(g: Any, rows: Any, ids: Any, fields: Any, block: int, taken: Any) -> int:
    base, stride, gone = g[BASE], g[STRIDE], 0
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            fetch(base + _row_of(g, rows, ids, i + AHEAD) * stride, stride)
        if i < 0:
            continue
        row, address, name, stamp, there = _look(g, rows, ids, i, base, stride)
        if there:
            get_row(fields, i, row, block)
            after_loads()
            there = holds(address, name) and load(address + FLAGS) == stamp
        if len(taken):
            taken[i] = there
        gone += not there
    return gone


@kernel(inline=True)
def _read_pairs(g: Any, rows: Any, ids: Any, fields: Any, block: int, taken: Any) -> int:
    """As `_read_linked`, of which it takes half the time, for steps with the row after each."""
    base, stride, count, gone = g[BASE], g[STRIDE], g[ROWS], 0
    for i in range(-2 * AHEAD, len(ids)):
        if i + 2 * AHEAD < len(ids):
            fetch(base + _row_of(g, rows, ids, i + 2 * AHEAD) * stride, stride)
        if 0 <= i + AHEAD < len(ids):
            _fetch_linked(g, _row_of(g, rows, ids, i + AHEAD), 0, 1)
        if i < 0:
            continue
        row, address, name, stamp, there = _look(g, rows, ids, i, base, stride)
        after = load(address + NEXT)
        if after < 0:  # it terminated without an observation after it
            there = there and stamp & TERMINATED != 0
            after = name
        other = neighbour(row, name, after, count)
        address_after = base + other * stride
        stamp_after = load(address_after + FLAGS)
        there = there and holds(address_after, after) and stamp_after & VERSION_ONE == 0
        if there:
            for f in range(len(fields)):
                shown = other if fields[f, t.SHOWN] == t.AFTER else row
                copy(
                    block + fields[f, t.ARRAY_ADDRESS] + i * fields[f, t.ARRAY_STRIDE],
                    fields[f, t.ROW_ADDRESS] + shown * fields[f, t.ROW_STRIDE],
                    fields[f, t.NBYTES],
                )
            after_loads()
            there = holds(address, name) and load(address + FLAGS) == stamp
            there = there and holds(address_after, after)
            there = there and load(address_after + FLAGS) == stamp_after
        if len(taken):
            taken[i] = there
        gone += not there
    return gone


@kernel(inline=True, always=True)
def _read_item(
    g: Any,
    row: int,
    name: int,
    i: int,
    fields: Any,
    plan: Any,
    visited: Any,
    block: int,
    goal: int,
) -> int:
    """Read an item that shows other rows beside its own. Return its steps, 0 if it is gone.

    ``goal``: the id of the row with its new goal; -1: it keeps its own, -2: that row is gone.
    """
    first = plan[t.BEFORE] - 1
    if goal < -1 or name < 0 or not visit(g, visited, name, row, first):
        return 0
    if visited.stamps[first] & FINAL or not walk_back(g, visited, first + 1):
        return 0
    steps, last, apart = walk_on(g, plan, visited)
    if steps == 0:
        return 0
    # it terminated without an observation after it: what it achieved is unknown
    if goal >= 0 and not (plan[t.FOLLOWING] and visited.names[last] == visited.names[last - 1]):
        last += 1
        if not visit(g, visited, goal, goal % g[ROWS], last):
            return 0
    else:
        goal = -1
    ended = visited.stamps[first + steps - 1] & TERMINATED != 0
    copy_item(g, fields, plan, i, block, visited, steps, apart, goal, last, ended)
    after_loads()
    return steps if unchanged(g, plan, visited, last, apart) else 0


@kernel(inline=True)
def _read_linked(
    g: Any, rows: Any, ids: Any, fields: Any, plan: Any, block: int, goals: Any, taken: Any
) -> int:
    base, stride, gone = g[BASE], g[STRIDE], 0
    before, after = plan[t.BEFORE] - 1, plan[t.SPAN] - 1 + plan[t.FOLLOWED]
    ahead = AHEAD if after < AHEAD else 1  # items
    after = min(after, AHEAD)
    size, at = plan[t.PLACES], len(plan) - 5 * plan[t.PLACES]
    visited = Visited(
        plan[at : at + size],
        plan[at + size : at + 2 * size],
        plan[at + 2 * size : at + 3 * size],
        plan[at + 3 * size : at + 4 * size],
        plan[at + 4 * size :],
        base,
        stride,
        g[ROWS],
    )
    for i in range(-2 * ahead, len(ids)):
        if i + 2 * ahead < len(ids):
            fetch(base + _row_of(g, rows, ids, i + 2 * ahead) * stride, stride)
        if 0 <= i + ahead < len(ids):
            _fetch_linked(g, _row_of(g, rows, ids, i + ahead), before, after)
            if len(goals) and goals[i + ahead] >= 0:
                fetch(base + goals[i + ahead] % g[ROWS] * stride, stride)
        if i < 0:
            continue
        row = _row_of(g, rows, ids, i)
        if len(rows):
            ids[i] = load(base + row * stride + ID) - 1
        goal = goals[i] if len(goals) else -1
        steps = _read_item(g, row, ids[i], i, fields, plan, visited, block, goal)
        if len(taken):
            taken[i] = steps
        gone += steps == 0
    return gone


@kernel(inline=True)
def copy_rows(
    g: Any, rows: Any, ids: Any, fields: Any, plan: Any, block: int, goals: Any, taken: Any
) -> int:
    """Read items by their rows, and fill in their ids; or by their ids, if ``rows`` is empty.

    Return how many are gone, and set ``taken``, if it has room, to the steps of each, 0 for one
    that is gone. See field_table.py and field_table.py. Addresses in ``fields`` count from
    ``block``.
    """
    if len(plan) and plan[t.PAIR]:
        return _read_pairs(g, rows, ids, fields, block, taken)
    if len(plan):
        return _read_linked(g, rows, ids, fields, plan, block, goals, taken)
    return _read_single(g, rows, ids, fields, block, taken)


@kernel(keeps_gil=True)
def read(
    g: Any, rows: Any, ids: Any, fields: Any, plan: Any, block: int, goals: Any, taken: Any
) -> int:
    """See `copy_rows`."""
    return copy_rows(g, rows, ids, fields, plan, block, goals, taken)


@kernel()
def read_many(
    g: Any, rows: Any, ids: Any, fields: Any, plan: Any, block: int, goals: Any, taken: Any
) -> int:
    """As `read`, for long copies: releases the GIL."""
    return copy_rows(g, rows, ids, fields, plan, block, goals, taken)


@kernel(keeps_gil=True)
def read_any(g: Any, numbers: Any, fields: Any, plan: Any, ids: Any, rows: Any) -> int:
    """Draw items with equal probability, and read them, in one kernel under the table's lock.

    Addresses in ``fields`` count from ``ids``. Returns how many of ``numbers`` were used, 0 if they
    were too few or an item could not be read.
    """
    top, alive, used = g[TOP], g[ALIVE], 0
    # a loop of its own: a processor is many such looks ahead, and few copies
    for i in range(len(ids)):
        row = -1
        while row < 0:
            if used == len(numbers):
                return 0
            row = int(numbers[used] * top)
            used += 1
            if peek8(alive + row) == 0:
                row = -1
        rows[i] = row
    none = rows[:0]
    gone = copy_rows(g, rows, ids, fields, plan, ids.ctypes.data, none, none)
    return used if gone == 0 else 0


@kernel(inline=True)
def row_of(g: Any, name: int) -> int:
    """Return the row of an id, -1 if it is gone.

    Deleted steps and final observations count as gone.
    """
    if name < 0:
        return -1
    row = name % g[ROWS]
    address = g[BASE] + row * g[STRIDE]
    return row if holds(address, name) and load(address + FLAGS) & (FINAL | DELETED) == 0 else -1


@kernel(keeps_gil=True)
def find(g: Any, ids: Any, rows: Any, deleted: bool) -> int:
    """Fill in the rows of ids, as `row_of`. Return how many are there.

    ``deleted``: also of deleted steps, which returns and stacks still show.
    """
    found = 0
    for i in range(len(ids)):
        name = ids[i]
        row = row_of(g, name)
        if deleted and row < 0 and g[ORDERED] and name >= 0 and name >= g[CURSOR] - g[CAPACITY]:
            address = g[BASE] + (name % g[ROWS]) * g[STRIDE]
            if holds(address, name) and load(address + FLAGS) & FINAL == 0:
                row = name % g[ROWS]
        rows[i] = row
        found += row >= 0
    return found
