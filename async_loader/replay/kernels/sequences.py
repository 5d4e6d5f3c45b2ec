"""Reads sequences of steps, without a lock: finds their rows, copies them, and checks that no
writer came between.

The rows that a sequence shows have places: first those that only its stacks show, then its steps,
each with the observation after its episode where there is one. ``names``, ``rows`` and ``stamps``
have their ids, rows and versions, ``begins`` the place at which a later episode begins, and
``where`` the place of each step that is shown.
"""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import sequence_table as q
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ANCHOR,
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    FRAMES,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
    ZERO_PADDED,
)
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
    VERSION_ONE,
)
from async_loader.replay.kernels.linked_rows import neighbour
from async_loader.replay.kernels.machine import (
    after_loads,
    copy,
    copy_run,
    load,
    memzero,
    poke8,
    poke64,
)
from async_loader.replay.kernels.row_address import AHEAD, fetch, holds

# The anchors of read_plan.py.
_AFTER, _FIRST = 1, 3
_EIGHT = 0x0101010101010101
"""Eight bools that are true."""


@kernel(inline=True)
def _visit(g: Any, name: int, row: int, place: int, names: Any, rows: Any, stamps: Any) -> bool:
    """As `reading.visit`, for a step whose row is known: a division takes as long as a copy."""
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
def _repeat(place: int, names: Any, rows: Any, stamps: Any) -> None:
    """Have the place after one show the same row."""
    names[place + 1], rows[place + 1] = names[place], rows[place]
    stamps[place + 1] = stamps[place]


@kernel(inline=True)
def _walk_back(g: Any, depth: int, names: Any, rows: Any, stamps: Any) -> bool:
    """As `reading.walk_back`."""
    for place in range(depth - 1, 0, -1):
        before = -1
        if names[place] >= 0:
            before = load(g[BASE] + rows[place] * g[STRIDE] + PREV)
        names[place - 1] = -1
        if before >= 0:
            row = neighbour(rows[place], names[place], before, g[ROWS])
            if not _visit(g, before, row, place - 1, names, rows, stamps):
                return False
    return True


@kernel(inline=True)
def _fetch_on(g: Any, row: int, before: int) -> None:
    """Begin to load the row that is visited AHEAD steps later: they mostly lie as far from each
    other as this one does from the one before.
    """
    place = row + AHEAD * (row - before)
    if 0 <= place < g[ROWS]:
        fetch(g[BASE] + place * g[STRIDE], g[STRIDE])


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
    for t in range(count):
        if t + AHEAD < count:
            fetch(address + AHEAD * step, g[STRIDE])
        stamp = load(address + FLAGS)
        wrong |= load(address + ID) ^ (name + 1)
        if t < count - 1:
            flags |= stamp
            wrong |= load(address + NEXT) ^ (name + apart)
        else:
            flags |= stamp & ~ENDS
        place = first + t
        names[place], rows[place], stamps[place] = name, row, stamp
        name, row, address = name + apart, row + apart, address + step
    return apart if wrong == 0 and flags & (ENDS | VERSION_ONE) == 0 else 0


@kernel(inline=True)
def _walk(g: Any, shape: Any, names: Any, rows: Any, stamps: Any) -> Any:
    """Find the rows of the sequence whose first step is at ``BEFORE - 1``.

    Returns how many steps there are from the first on, 0 if some are missing, the place of the
    last row that was visited, and how far the rows of these steps lie from each other, 0 if not
    equally far.
    """
    place = first = shape[q.BEFORE] - 1
    span = (shape[q.PLACES_OF_TIME] - 1) * shape[q.DILATION] + 1
    ended = False
    if shape[q.WHOLE] and load(g[BASE] + rows[first] * g[STRIDE] + PREV) >= 0:
        return 0, place, 0  # it begins within an episode
    apart = _walk_evenly(g, first, span, names, rows, stamps)
    if apart:
        place = first + span - 1
    while place - first + 1 < span + shape[q.FOLLOWED]:
        if stamps[place] & ENDS:
            ended = True
            break
        after, row = _next(g, place, names, rows)
        if after < 0:
            break
        place += 1
        if not _visit(g, after, row, place, names, rows, stamps):
            return 0, place, 0
        if place - first + AHEAD < span:
            _fetch_on(g, row, rows[place - 1])
    steps = place - first + 1
    if stamps[place] & ENDS and steps <= span:
        ended = True
    if not ended:  # the episode goes on, or ends after the sequence
        if shape[q.WHOLE] or steps < span + shape[q.FOLLOWED]:
            return 0, place, 0
        return span, place, apart
    if (steps - 1) // shape[q.DILATION] + 1 < shape[q.LEAST]:
        return 0, place, 0
    if shape[q.FOLLOWED]:
        after, row = _next(g, place, names, rows)
        place += 1
        if after < 0:  # it terminated without an observation after it
            _repeat(place - 1, names, rows, stamps)
        elif not _visit(g, after, row, place, names, rows, stamps):
            return 0, place, 0
    return steps, place, apart


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
def _walk_across(
    g: Any, shape: Any, names: Any, rows: Any, stamps: Any, begins: Any, where: Any
) -> Any:
    """As `_walk`, also into the next episodes of the stream."""
    place = shape[q.BEFORE] - 1
    span = (shape[q.PLACES_OF_TIME] - 1) * shape[q.DILATION] + 1
    followed, begin = shape[q.FOLLOWED], 0
    if not followed:
        apart = _walk_evenly(g, place, span, names, rows, stamps)
        if apart:  # all of them are of one episode
            for step in range(span):
                begins[place + step] = begin
            for step in range(shape[q.PLACES_OF_TIME]):
                where[step] = place + step * shape[q.DILATION]
            return span, place + span - 1, apart
    begins[place] = begin
    for step in range(span):
        last, ends = step == span - 1, stamps[place] & ENDS != 0
        if step % shape[q.DILATION] == 0:
            where[step // shape[q.DILATION]] = place
        if last and not followed:
            break
        after, row = _next(g, place, names, rows)
        if ends and followed:
            begins[place + 1] = begin
            _repeat(place, names, rows, stamps)
            place += 1
            if after >= 0 and not _visit(g, after, row, place, names, rows, stamps):
                return 0, place, 0
            if last:
                break
        place += 1
        if ends:
            begin, after = place, _next_episode(g, after)
            row = after % g[ROWS]
        begins[place] = begin
        if after < 0 or not _visit(g, after, row, place, names, rows, stamps):
            return 0, place, 0
    return span, place, 0


@kernel(inline=True)
def _copy_frames(
    fields: Any, f: int, target: int, names: Any, rows: Any, begin: int, end: int
) -> None:
    """As `reading.frames_of`, of an episode that begins at the place ``begin`` at the earliest."""
    source, row_bytes, count = fields[f, ROW_ADDRESS], fields[f, ROW_STRIDE], fields[f, NBYTES]
    place = end - fields[f, FRAMES] + 1
    first = max(begin, place)
    while names[first] < 0:
        first += 1
    while place < first:
        if fields[f, ZERO_PADDED]:
            memzero(target, count)
        else:
            copy(target, source + rows[first] * row_bytes, count)
        target += count
        place += 1
    while place <= end:
        row, together = rows[place], 1
        # a column: rows that lie one behind the other are one copy, which takes two thirds of the
        # time
        if row_bytes == count:
            while place + together <= end and rows[place + together] == row + together:
                together += 1
        copy(target, source + row * row_bytes, together * count)
        target += together * count
        place += together


@kernel(inline=True)
def _run(rows: Any, where: Any, t: int, there: int, on: int, regular: int) -> Any:
    """Return how many rows from the step ``t`` on lie equally far from each other, and how far.

    ``on``: 1 for the rows after the steps. ``regular``: how many do from the first step on.
    """
    row, together = rows[where[t] + on], 1
    if t + 1 >= there:
        return 1, 1
    apart = rows[where[t + 1] + on] - row
    if t == 0 and on == 0 and regular:
        return regular, apart
    while (
        t + together < there
        and rows[where[t + together] + on] - rows[where[t + together - 1] + on] == apart
    ):
        together += 1
    return together, apart


@kernel(inline=True)
def _copy_rows(
    g: Any,
    fields: Any,
    shape: Any,
    i: int,
    names: Any,
    rows: Any,
    begins: Any,
    where: Any,
    there: int,
    apart: int,
) -> None:
    """Copy the steps of one sequence, and zeros where there are none.

    ``apart``: how far their rows lie from each other, 0 if not equally far.
    """
    empty = shape[q.PLACES_OF_TIME] - there
    regular = there
    if not apart or there == 1:
        regular, _ = _run(rows, where, 0, there, 0, 0)
    for f in range(len(fields)):
        count, row_bytes = fields[f, NBYTES], fields[f, ROW_STRIDE]
        anchor, frames = fields[f, ANCHOR], fields[f, FRAMES]
        target = fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
        if anchor == _FIRST:
            _copy_frames(fields, f, target, names, rows, 0, shape[q.BEFORE] - 1)
            continue
        on = 1 if anchor == _AFTER else 0
        source = fields[f, ROW_ADDRESS]
        if frames > 1:
            for t in range(there):
                end = where[t] + on
                _copy_frames(fields, f, target, names, rows, begins[end], end)
                target += frames * count
        else:
            t = 0
            while t < there:
                together, apart = _run(rows, where, t, there, on, regular)
                row = rows[where[t] + on]
                copy_run(target, source + row * row_bytes, apart * row_bytes, together, count)
                target += together * count
                t += together
        if empty:
            memzero(target, empty * frames * count)


@kernel(inline=True)
def _describe(
    g: Any, shape: Any, i: int, names: Any, rows: Any, begins: Any, where: Any, there: int
) -> None:
    """Fill in the mask, where episodes begin, and the ids of the steps."""
    first, places = shape[q.BEFORE] - 1, shape[q.PLACES_OF_TIME]
    mask = shape[q.MASK] + i * shape[q.MASK_STRIDE]
    is_first = shape[q.IS_FIRST] + i * shape[q.IS_FIRST_STRIDE]
    index = shape[q.STEP_INDEX] + i * shape[q.STEP_INDEX_STRIDE]
    memzero(is_first, places)
    if load(g[BASE] + rows[first] * g[STRIDE] + PREV) < 0:
        poke8(is_first, 1)
    if shape[q.ACROSS]:
        for t in range(1, there):
            poke8(is_first + t, 1 if begins[where[t]] > where[t - 1] else 0)
    full = there // 8 * 8
    for t in range(0, full, 8):
        poke64(mask + t, _EIGHT)
    for t in range(full, there):
        poke8(mask + t, 1)
    memzero(mask + there, places - there)
    if shape[q.ACROSS] or shape[q.DILATION] > 1:
        for t in range(there):
            poke64(index + 8 * t, names[where[t]])
    else:
        copy(index, names.ctypes.data + 8 * first, 8 * there)
    for t in range(there, places):
        poke64(index + 8 * t, -1)


@kernel(inline=True)
def _unchanged(
    g: Any, shape: Any, last: int, apart: int, names: Any, rows: Any, stamps: Any
) -> bool:
    """As `reading.same_rows`, for rows that are known; ``apart``: as in `_copy_rows`."""
    place, wrong = 0, 0
    while place <= last:
        if apart and place == shape[q.BEFORE] - 1:
            name = names[place] + 1
            address, step = g[BASE] + rows[place] * g[STRIDE], apart * g[STRIDE]
            span = (shape[q.PLACES_OF_TIME] - 1) * shape[q.DILATION] + 1
            for t in range(span):
                wrong |= load(address + ID) ^ name
                wrong |= load(address + FLAGS) ^ stamps[place + t]
                name, address = name + apart, address + step
            place += span
            continue
        if names[place] >= 0:
            address = g[BASE] + rows[place] * g[STRIDE]
            wrong |= load(address + ID) ^ (names[place] + 1)
            wrong |= load(address + FLAGS) ^ stamps[place]
        place += 1
    return wrong == 0


@kernel(inline=True)
def _read_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    gone = 0
    base, stride, capacity = g[BASE], g[STRIDE], g[ROWS]
    names, rows, stamps, begins, where = visited[0], visited[1], visited[2], visited[3], visited[4]
    first = shape[q.BEFORE] - 1
    for i in range(len(ids)):
        if i + 1 < len(ids):
            row = ids[i + 1] % capacity
            for k in range(row, min(row + AHEAD, capacity)):
                fetch(base + k * stride, stride)
        taken[i] = 0
        gone += 1
        if (
            ids[i] < 0
            or not _visit(g, ids[i], ids[i] % capacity, first, names, rows, stamps)
            or stamps[first] & FINAL
            or not _walk_back(g, shape[q.BEFORE], names, rows, stamps)
        ):
            continue
        if shape[q.ACROSS]:
            steps, last, apart = _walk_across(g, shape, names, rows, stamps, begins, where)
        else:
            steps, last, apart = _walk(g, shape, names, rows, stamps)
        if steps == 0:
            continue
        there = (steps - 1) // shape[q.DILATION] + 1
        _copy_rows(g, fields, shape, i, names, rows, begins, where, there, apart)
        _describe(g, shape, i, names, rows, begins, where, there)
        after_loads()
        if _unchanged(g, shape, last, apart, names, rows, stamps):
            taken[i] = there
            gone -= 1
    return gone


@kernel(keeps_gil=True)
def read_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    """Read the sequences that begin with the steps of ``ids``.

    ``taken [sequences]``: the places that hold a step, 0 for a sequence that is not there. Returns
    how many are not. ``shape``: see sequence_table.py. ``visited [5, places]``: scratch, of which
    ``begins`` is 0 and ``where`` filled in, unless sequences go on into the next episode.
    """
    return _read_sequences(g, ids, fields, shape, visited, taken)


@kernel()
def read_many_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    """As `read_sequences`, for long copies: releases the GIL."""
    return _read_sequences(g, ids, fields, shape, visited, taken)
