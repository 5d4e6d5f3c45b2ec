"""Finds the rows that an item shows, without a lock, and says later whether they are the same.

See base/field_table.py for their places.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from async_loader.replay.base import field_table as t
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
from async_loader.replay.kernels.machine import (
    AHEAD,
    after_loads,
    fetch,
    fetch_run,
    holds,
    load,
    neighbour,
)

_EVEN_FROM = 5
"""Steps from which on it is tried whether all lie equally far from each other."""


class Visited(NamedTuple):
    """The rows that an item shows.

    Attributes
    ----------
    names, rows, stamps : int64 arrays [places]
        Their ids, negative before the episode's start; where they are, and their versions.
    begins : int64 array [places]
        The place at which the episode of each begins.
    axis : int64 array [places]
        The place of each step on the time axis.
    base, stride, size : int
        Of the table's rows: a kernel that stores would load them from ``g`` again.
    """

    names: Any
    rows: Any
    stamps: Any
    begins: Any
    axis: Any
    base: int
    stride: int
    size: int


@kernel(inline=True, always=True)
def visit(g: Any, visited: Any, name: int, row: int, place: int) -> bool:
    """Record the version of a row that is being read.

    Return whether it is there and not being patched.
    """
    address = visited.base + row * visited.stride
    visited.names[place], visited.rows[place] = name, row
    visited.stamps[place] = load(address + FLAGS)
    return holds(address, name) and visited.stamps[place] & VERSION_ONE == 0


@kernel(inline=True, always=True)
def _linked(g: Any, visited: Any, place: int, link: int) -> Any:
    """Return the id that the row at a place links to, negative without one, and where it is."""
    row = visited.rows[place]
    other = load(visited.base + row * visited.stride + link)
    return other, neighbour(row, visited.names[place], other, visited.size)


@kernel(inline=True, always=True)
def walk_back(g: Any, visited: Any, depth: int) -> bool:
    """Find the steps before the one at ``depth - 1``, as far as the episode goes; -1 before its
    start.
    """
    for place in range(depth - 1, 0, -1):
        visited.names[place - 1] = -1
        if visited.names[place] >= 0:
            before, row = _linked(g, visited, place, PREV)
            if before >= 0 and not visit(g, visited, before, row, place - 1):
                return False
    return True


@kernel(inline=True, always=True)
def _walk_evenly(g: Any, visited: Any, first: int, count: int) -> int:
    """Find the rows of ``count`` steps from the place ``first`` on, which has been visited, if they
    lie equally far from each other, as those of a stream mostly do, and no episode ends before the
    last. Returns how far, 0 if not.

    No load waits for the one before, as it does from link to link: a third of the time.
    """
    name, row = visited.names[first], visited.rows[first]
    apart = load(visited.base + row * visited.stride + NEXT) - name
    end = row + apart * (count - 1)
    if apart <= 0 or end >= visited.size:
        return 0
    address, step = visited.base + row * visited.stride, apart * visited.stride
    flags, wrong = 0, 0
    for k in range(count):
        if k + AHEAD < count:
            fetch(address + AHEAD * step, visited.stride)
        stamp = load(address + FLAGS)
        wrong |= load(address + ID) ^ (name + 1)
        if k < count - 1:
            flags |= stamp
            wrong |= load(address + NEXT) ^ (name + apart)
        else:
            flags |= stamp & ~ENDS
        place = first + k
        visited.names[place], visited.rows[place], visited.stamps[place] = name, row, stamp
        name, row, address = name + apart, row + apart, address + step
    return apart if wrong == 0 and flags & (ENDS | VERSION_ONE) == 0 else 0


@kernel(inline=True, always=True)
def _visit_after(g: Any, visited: Any, place: int) -> Any:
    """Visit the row after the one at a place; without one, the same row is shown again.

    Return whether it could be visited, and its id, negative without one.
    """
    after, row = _linked(g, visited, place, NEXT)
    if after >= 0:
        return visit(g, visited, after, row, place + 1), after
    return visit(g, visited, visited.names[place], visited.rows[place], place + 1), after


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


@kernel(inline=True, always=True)
def walk_on(g: Any, plan: Any, visited: Any) -> Any:
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
    if plan[t.WHOLE] and load(visited.base + visited.rows[first] * visited.stride + PREV) >= 0:
        return 0, place, 0  # it begins within an episode
    apart, step = 0, 0
    if span >= _EVEN_FROM:
        apart = _walk_evenly(g, visited, first, span)
        if apart:
            step = span - 1
            place = first + step
    if across:  # these are of one episode
        for k in range(step + 1):
            visited.begins[first + k] = 0
        for k in range(step // dilation + 1):
            visited.axis[k] = first + k * dilation
    begin = 0
    while step < span - 1:
        ends = visited.stamps[place] & ENDS != 0
        if ends and not across:
            break
        after, row = _linked(g, visited, place, NEXT)
        if ends:
            if followed:
                there, after = _visit_after(g, visited, place)
                place += 1
                visited.begins[place] = begin
                if not there:
                    return 0, place, 0
            begin, after = place + 1, _next_episode(g, after)
            row = after % visited.size
        place += 1
        if after < 0 or not visit(g, visited, after, row, place):
            return 0, place, 0
        step += 1
        if across:
            visited.begins[place] = begin
            if step % dilation == 0:
                visited.axis[step // dilation] = place
        elif step + AHEAD < span:
            fetch_run(g, row, row - visited.rows[place - 1], AHEAD, AHEAD, visited.stride)
    ends = visited.stamps[place] & ENDS != 0
    if not ends and (plan[t.WHOLE] or step < span - 1):
        return 0, place, 0
    if step < (plan[t.LEAST] - 1) * dilation:
        return 0, place, 0
    if followed:
        flags = visited.stamps[place]
        there, after = _visit_after(g, visited, place)
        place += 1
        visited.begins[place] = begin
        if not there or (after < 0 and flags & TERMINATED == 0):
            return 0, place, 0
    return step + 1, place, apart


@kernel(inline=True, always=True)
def unchanged(g: Any, plan: Any, visited: Any, last: int, apart: int) -> bool:
    """Return whether no row up to the place ``last`` was written since it was visited. See NOTE
    [row lock]. ``apart``: as `walk_on` says.
    """
    place, wrong = 0, 0
    while place <= last:
        if apart and place == plan[t.BEFORE] - 1:
            name = visited.names[place] + 1
            address, step = (
                visited.base + visited.rows[place] * visited.stride,
                apart * visited.stride,
            )
            for k in range(plan[t.SPAN]):
                wrong |= load(address + ID) ^ name
                wrong |= load(address + FLAGS) ^ visited.stamps[place + k]
                name, address = name + apart, address + step
            place += plan[t.SPAN]
            continue
        if visited.names[place] >= 0:
            address = visited.base + visited.rows[place] * visited.stride
            wrong |= load(address + ID) ^ (visited.names[place] + 1)
            wrong |= load(address + FLAGS) ^ visited.stamps[place]
        place += 1
    return wrong == 0
