"""Finds the rows that an item shows, without a lock, and says later whether they are the same.

See base/read_table.py for their places.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import read_table as t
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import (
    BASE,
    ENDS,
    FINAL,
    FLAGS,
    ID,
    NEXT,
    PREV,
    ROWS,
    STRIDE,
    TERMINATED,
    VERSION_ONE,
)
from async_loader.replay.kernels.machine import after_loads, load
from async_loader.replay.kernels.row_address import AHEAD, fetch, fetch_run, holds, neighbour

_EVEN_FROM = 5
"""Steps from which on it is tried whether all lie equally far from each other."""


@kernel(inline=True)
def visit(g: Any, name: int, row: int, place: int, names: Any, rows: Any, stamps: Any) -> bool:
    """Record the version of a row that is being read.

    Return whether it is there and not being patched.
    """
    address = g[BASE] + row * g[STRIDE]
    names[place], rows[place] = name, row
    stamps[place] = load(address + FLAGS)
    return holds(address, name) and stamps[place] & VERSION_ONE == 0


@kernel(inline=True)
def _next(g: Any, place: int, names: Any, rows: Any) -> Any:
    """Return the id of the row after the one at a place, negative without one, and where it is."""
    after = load(g[BASE] + rows[place] * g[STRIDE] + NEXT)
    return after, neighbour(rows[place], names[place], after, g[ROWS])


@kernel(inline=True)
def walk_back(g: Any, depth: int, names: Any, rows: Any, stamps: Any) -> bool:
    """Find the steps before the one at ``depth - 1``, as far as the episode goes; -1 before its
    start.
    """
    for place in range(depth - 1, 0, -1):
        before = -1
        if names[place] >= 0:
            before = load(g[BASE] + rows[place] * g[STRIDE] + PREV)
        names[place - 1] = -1
        if before >= 0:
            row = neighbour(rows[place], names[place], before, g[ROWS])
            if not visit(g, before, row, place - 1, names, rows, stamps):
                return False
    return True


@kernel(inline=True)
def _walk_evenly(g: Any, first: int, count: int, names: Any, rows: Any, stamps: Any) -> int:
    """Find the rows of ``count`` steps from the place ``first`` on, which has been visited, if they
    lie equally far from each other, as those of a stream mostly do, and no episode ends before the
    last. Returns how far, 0 if not.

    No load waits for the one before, as it does from link to link: a third of the time.
    """
    name, row = names[first], rows[first]
    apart = load(g[BASE] + row * g[STRIDE] + NEXT) - name
    end = row + apart * (count - 1)
    if apart <= 0 or end >= g[ROWS]:
        return 0
    address, step = g[BASE] + row * g[STRIDE], apart * g[STRIDE]
    flags, wrong = 0, 0
    for k in range(count):
        if k + AHEAD < count:
            fetch(address + AHEAD * step, g[STRIDE])
        stamp = load(address + FLAGS)
        wrong |= load(address + ID) ^ (name + 1)
        if k < count - 1:
            flags |= stamp
            wrong |= load(address + NEXT) ^ (name + apart)
        else:
            flags |= stamp & ~ENDS
        place = first + k
        names[place], rows[place], stamps[place] = name, row, stamp
        name, row, address = name + apart, row + apart, address + step
    return apart if wrong == 0 and flags & (ENDS | VERSION_ONE) == 0 else 0


@kernel(inline=True)
def _visit_after(g: Any, place: int, names: Any, rows: Any, stamps: Any) -> Any:
    """Visit the row after the one at a place; without one, the same row is shown again.

    Return whether it could be visited, and its id, negative without one.
    """
    after, row = _next(g, place, names, rows)
    if after >= 0:
        return visit(g, after, row, place + 1, names, rows, stamps), after
    names[place + 1], rows[place + 1] = names[place], rows[place]
    stamps[place + 1] = stamps[place]
    return True, after


@kernel(inline=True)
def _next_episode(g: Any, after: int) -> int:
    """Return the first step of the next episode, from the link after an episode's last step; -1
    without one. See row_format.py, NOTE [next episodes].
    """
    while True:
        name = after if after >= 0 else -2 - after
        if name < 0:
            return -1
        address = g[BASE] + name % g[ROWS] * g[STRIDE]
        if not holds(address, name):
            return -1
        if load(address + FLAGS) & FINAL == 0:
            return name
        after = load(address + NEXT)  # that of an observation after an episode
        after_loads()
        if not holds(address, name):
            return -1


@kernel(inline=True)
def walk_on(g: Any, plan: Any, names: Any, rows: Any, stamps: Any, begins: Any, axis: Any) -> Any:
    """Find the rows of the item whose first step is at ``BEFORE - 1``.

    Returns how many steps there are from the first on, 0 if some are missing, the place of the
    last row that was visited, and how far the rows of these steps lie from each other, 0 if not
    equally far.

    An episode that terminated without a final observation has none: its last step replaces it, and
    the discount of 0 removes its effect.
    """
    place = first = plan[t.BEFORE] - 1
    span, followed, across = plan[t.SPAN], plan[t.FOLLOWED], plan[t.ACROSS]
    dilation = plan[t.DILATION]
    if plan[t.WHOLE] and load(g[BASE] + rows[first] * g[STRIDE] + PREV) >= 0:
        return 0, place, 0  # it begins within an episode
    apart, step = 0, 0
    if span >= _EVEN_FROM:
        apart = _walk_evenly(g, first, span, names, rows, stamps)
        if apart:
            step = span - 1
            place = first + step
    if across:  # these are of one episode
        for k in range(step + 1):
            begins[first + k] = 0
        for k in range(step // dilation + 1):
            axis[k] = first + k * dilation
    begin = 0
    while step < span - 1:
        ends = stamps[place] & ENDS != 0
        if ends and not across:
            break
        after, row = _next(g, place, names, rows)
        if ends:
            if followed:
                there, after = _visit_after(g, place, names, rows, stamps)
                place += 1
                begins[place] = begin
                if not there:
                    return 0, place, 0
            begin, after = place + 1, _next_episode(g, after)
            row = after % g[ROWS]
        place += 1
        if after < 0 or not visit(g, after, row, place, names, rows, stamps):
            return 0, place, 0
        step += 1
        if across:
            begins[place] = begin
            if step % dilation == 0:
                axis[step // dilation] = place
        elif step + AHEAD < span:
            fetch_run(g, row, row - rows[place - 1], AHEAD, AHEAD, g[STRIDE])
    ends = stamps[place] & ENDS != 0
    if not ends and (plan[t.WHOLE] or step < span - 1):
        return 0, place, 0
    if step // dilation + 1 < plan[t.LEAST]:
        return 0, place, 0
    if followed:
        flags = stamps[place]
        there, after = _visit_after(g, place, names, rows, stamps)
        place += 1
        begins[place] = begin
        if not there or (after < 0 and flags & TERMINATED == 0):
            return 0, place, 0
    return step + 1, place, apart


@kernel(inline=True)
def unchanged(g: Any, plan: Any, last: int, apart: int, names: Any, rows: Any, stamps: Any) -> bool:
    """Return whether no row up to the place ``last`` was written since it was visited. See NOTE
    [row lock]. ``apart``: as `walk_on` says.
    """
    place, wrong = 0, 0
    while place <= last:
        if apart and place == plan[t.BEFORE] - 1:
            name = names[place] + 1
            address, step = g[BASE] + rows[place] * g[STRIDE], apart * g[STRIDE]
            for k in range(plan[t.SPAN]):
                wrong |= load(address + ID) ^ name
                wrong |= load(address + FLAGS) ^ stamps[place + k]
                name, address = name + apart, address + step
            place += plan[t.SPAN]
            continue
        if names[place] >= 0:
            address = g[BASE] + rows[place] * g[STRIDE]
            wrong |= load(address + ID) ^ (names[place] + 1)
            wrong |= load(address + FLAGS) ^ stamps[place]
        place += 1
    return wrong == 0
