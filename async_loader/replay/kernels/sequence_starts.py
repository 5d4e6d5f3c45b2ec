"""Follows the steps that become items, and finds those at which sequences begin.

Of each step in the table two numbers are kept: its id, and its position in its episode, which
follows from that of the step before.

Where sequences go on into the next episode (GOES_ON), the steps of a stream count as those of one
episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import (
    ALIVE,
    ENDS,
    FINAL,
    FLAGS,
    GIVEN,
    NAMES,
    NEXT,
    PREV,
    ROWS,
)
from async_loader.replay.kernels.machine import at, load, peek8, peek64, peek_float, there

# Of a sampler of sequences, in the order of its array.
SPAN = 0  # steps from the first to the last
SHORTEST = 1  # the same for a sequence that the end of its episode cuts short
STRIDE = 2  # steps from the beginning of one to that of the next
EPISODES = 3  # the longest episode that is a sequence; 0: sequences are parts of episodes
LEARNED_FROM = 4  # the first step to learn from, counted from the sequence's first
LEARNED = 5  # steps to learn from
APART = 6  # from one of them to the next
MOST = 7  # that one step completes
GOES_ON = 8  # 1: sequences go on into the next episode of their stream


@kernel(inline=True)
def _linked(g: Any, name: int, link: int, across: int) -> int:
    """Return the step that a step links to, -1 without one; see NOTE [next episodes].

    ``across``: past the end of an episode, and observations after it.
    """
    other = load(at(g, name) + link)
    if across == 0:
        return other
    if other < -1:
        other = -2 - other
    while there(g, other) and load(at(g, other) + FLAGS) & FINAL:
        other = load(at(g, other) + link)
        if other < -1:
            other = -2 - other
    return other


@kernel(inline=True)
def _after(g: Any, name: int, across: int) -> int:
    """Return the step that follows one that is still there, -1 without one."""
    return _linked(g, name, NEXT, across) if there(g, name) else -1


@kernel(inline=True)
def _first_unknown(g: Any, name: int, across: int, seen: Any) -> Any:
    """Return the first of the steps up to this one that have no numbers yet, and the one before it,
    -1 if that is gone.

    Steps that were deleted before they became items have none.
    """
    first = name
    while True:
        before = _linked(g, first, PREV, across)
        if not there(g, before):
            return first, -1
        if seen[before % g[ROWS]] == before:
            return first, before
        first = before


@kernel(inline=True)
def _place(g: Any, name: int, before: int, seen: Any, position: Any) -> None:
    """Work out the numbers of a step from those of the one before it."""
    row = name % g[ROWS]
    if before >= 0:
        position[row] = position[before % g[ROWS]] + 1
    elif seen[row] != -2 - name:  # otherwise a save has said where it is
        position[row] = 0
    seen[row] = name


@kernel(inline=True)
def _add(g: Any, name: int, found: Any, count: int) -> int:
    """Note the beginning of a sequence, if its step is an item. Return how many are noted."""
    if there(g, name) and peek8(g[ALIVE] + name % g[ROWS]):
        found[count] = name % g[ROWS]
        count += 1
    return count


@kernel(inline=True)
def _complete(g: Any, name: int, place: int, shape: Any, found: Any, count: int) -> int:
    """Note the sequences that are complete with a step. Return how many are noted."""
    across, stride, whole = shape[GOES_ON], shape[STRIDE], shape[EPISODES]
    first = last = place - shape[SPAN] + 1
    if across == 0 and load(at(g, name) + FLAGS) & ENDS:
        last = place - shape[SHORTEST] + 1
        if whole:
            first = last = 0 if place < whole else -1
    first = max(first, 0)
    first += -first % stride
    if first > last:
        return count
    step, at_place = name, place
    while at_place > first:
        before = _linked(g, step, PREV, across)
        if not there(g, before):
            break
        step, at_place = before, at_place - 1
    if whole and load(at(g, step) + PREV) >= 0:
        return count
    while step >= 0 and at_place <= last:
        if at_place % stride == 0:
            count = _add(g, step, found, count)
        at_place += 1
        step = _after(g, step, across)
    return count


@kernel(keeps_gil=True)
def find_starts(
    g: Any,
    rows: Any,
    i: int,
    shape: Any,
    seen: Any,
    position: Any,
    found: Any,
    out: Any,
) -> int:
    """Find the sequences that are complete with the new items in ``rows``, from ``rows[i]`` on.

    Their first rows go into ``found``, and how many they are into ``out[0]``. Returns the number of
    rows that are done: less than all if ``found``, with room for ``MOST`` at least, is full; -1 if
    the steps before one do not lead back to it.
    """
    count = 0
    while i < len(rows):
        name = peek64(g[NAMES] + 8 * rows[i])
        if there(g, name):
            known = seen[rows[i]] == name  # and now its episode has ended
            step, before = (name, -1) if known else _first_unknown(g, name, shape[GOES_ON], seen)
            while True:  # ids rise from step to step
                if count + shape[MOST] > len(found):
                    out[0] = count
                    return i
                if not known:
                    _place(g, step, before, seen, position)
                count = _complete(g, step, position[step % g[ROWS]], shape, found, count)
                if step == name:
                    break
                before = step
                step = _linked(g, step, NEXT, shape[GOES_ON])
                if step <= before:
                    return -1
        i += 1
    out[0] = count
    return i


@kernel(keeps_gil=True)
def first_priorities(g: Any, rows: Any, shape: Any, eta: float, priority: Any) -> None:
    """Work out the priorities of new sequences from those that their steps came with; NaN where
    none came with any.

    ``eta * max + (1 - eta) * mean`` over the steps to learn from (Kapturowski et al. 2019, section
    2.3).
    """
    for i in range(len(rows)):
        name = peek64(g[NAMES] + 8 * rows[i])
        for _ in range(shape[LEARNED_FROM]):
            name = _after(g, name, shape[GOES_ON]) if name >= 0 else -1
        largest, total, count = 0.0, 0.0, 0
        for _ in range(shape[LEARNED]):
            if name < 0 or not there(g, name):
                break
            value = abs(peek_float(g[GIVEN] + 8 * (name % g[ROWS])))
            if value == value:
                largest = max(largest, value)
                total += value
                count += 1
            if load(at(g, name) + FLAGS) & ENDS and shape[GOES_ON] == 0:
                break
            for _ in range(shape[APART]):
                name = _after(g, name, shape[GOES_ON]) if name >= 0 else -1
        priority[i] = eta * largest + (1 - eta) * (total / count) if count else np.nan
