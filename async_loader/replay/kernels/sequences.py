"""Reads sequences of steps, without a lock: finds their rows, copies them, and checks that no
writer came between.
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
    VERSION_ONE,
)
from async_loader.replay.kernels.machine import (
    after_loads,
    copy,
    load,
    memzero,
    poke8,
    poke64,
)
from async_loader.replay.kernels.reading import frames_of, same_rows, walk_back
from async_loader.replay.kernels.row_address import AHEAD, fetch, holds

# The anchors of read_plan.py.
_AFTER, _FIRST = 1, 3


@kernel(inline=True)
def _visit(g: Any, name: int, row: int, place: int, names: Any, rows: Any, stamps: Any) -> bool:
    """As `reading.visit`, for a step whose row is known: a division takes as long as a copy."""
    address = g[BASE] + row * g[STRIDE]
    names[place], rows[place] = name, row
    stamps[place] = load(address + FLAGS)
    return holds(address, name) and stamps[place] & VERSION_ONE == 0


@kernel(inline=True)
def _next(g: Any, place: int, names: Any, rows: Any) -> Any:
    """Return the id of the row after the one at a place, -1 without one, and where it is."""
    after = load(g[BASE] + rows[place] * g[STRIDE] + NEXT)
    row = rows[place] + after - names[place]
    return after, row if row < g[ROWS] else after % g[ROWS]


@kernel(inline=True)
def _walk(g: Any, shape: Any, names: Any, rows: Any, stamps: Any) -> Any:
    """Find the rows of the sequence whose first step is at ``BEFORE - 1``.

    Returns how many steps there are from the first on, 0 if some are missing, and the place of the
    last row that was visited.
    """
    place = first = shape[q.BEFORE] - 1
    span = (shape[q.PLACES_OF_TIME] - 1) * shape[q.DILATION] + 1
    ended = False
    while place - first + 1 < span + shape[q.FOLLOWED]:
        if stamps[place] & ENDS:
            ended = True
            break
        after, row = _next(g, place, names, rows)
        if after < 0:
            break
        place += 1
        if not _visit(g, after, row, place, names, rows, stamps):
            return 0, place
    steps = place - first + 1
    if stamps[place] & ENDS and steps <= span:
        ended = True
    if not ended:  # the episode goes on, or ends after the sequence
        if shape[q.WHOLE] or steps < span + shape[q.FOLLOWED]:
            return 0, place
        return span, place
    if (steps - 1) // shape[q.DILATION] + 1 < shape[q.LEAST]:
        return 0, place
    if shape[q.FOLLOWED]:
        after, row = _next(g, place, names, rows)
        place += 1
        if after < 0:  # it terminated without an observation after it
            names[place], rows[place], stamps[place] = (
                names[place - 1],
                rows[place - 1],
                stamps[place - 1],
            )
        elif not _visit(g, after, row, place, names, rows, stamps):
            return 0, place
    return steps, place


@kernel(inline=True)
def _copy_rows(g: Any, fields: Any, shape: Any, i: int, names: Any, rows: Any, there: int) -> None:
    """Copy the steps of one sequence, and zeros where there are none."""
    before, apart = shape[q.BEFORE] - 1, shape[q.DILATION]
    empty = shape[q.PLACES_OF_TIME] - there
    for f in range(len(fields)):
        count, row_bytes = fields[f, NBYTES], fields[f, ROW_STRIDE]
        anchor, frames = fields[f, ANCHOR], fields[f, FRAMES]
        target = fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
        if anchor == _FIRST:
            frames_of(g, fields, f, target, names, before)
            continue
        start = before + (1 if anchor == _AFTER else 0)
        source = fields[f, ROW_ADDRESS]
        if frames > 1:
            for t in range(there):
                frames_of(g, fields, f, target, names, start + t * apart)
                target += frames * count
        elif row_bytes != count:
            for t in range(there):
                copy(target, source + rows[start + t * apart] * row_bytes, count)
                target += count
        else:
            t = 0
            while t < there:  # a column: rows that lie one behind the other are one copy
                row, together = rows[start + t * apart], 1
                while (
                    t + together < there and rows[start + (t + together) * apart] == row + together
                ):
                    together += 1
                copy(target, source + row * row_bytes, together * count)
                target += together * count
                t += together
        if empty:
            memzero(target, empty * frames * count)


@kernel(inline=True)
def _describe(g: Any, shape: Any, i: int, names: Any, rows: Any, there: int) -> None:
    """Fill in the mask, where episodes begin, and the ids of the steps."""
    before, apart, places = shape[q.BEFORE] - 1, shape[q.DILATION], shape[q.PLACES_OF_TIME]
    mask = shape[q.MASK] + i * shape[q.MASK_STRIDE]
    is_first = shape[q.IS_FIRST] + i * shape[q.IS_FIRST_STRIDE]
    index = shape[q.STEP_INDEX] + i * shape[q.STEP_INDEX_STRIDE]
    memzero(is_first, places)
    # of all steps of a sequence, only the first has none before it
    if load(g[BASE] + rows[before] * g[STRIDE] + PREV) < 0:
        poke8(is_first, 1)
    for t in range(there):
        poke8(mask + t, 1)
        poke64(index + 8 * t, names[before + t * apart])
    for t in range(there, places):
        poke8(mask + t, 0)
        poke64(index + 8 * t, -1)


@kernel(inline=True)
def _unchanged(g: Any, first: int, last: int, names: Any, rows: Any, stamps: Any) -> bool:
    """As `reading.same_rows`, for rows that are known."""
    for place in range(first, last + 1):
        address = g[BASE] + rows[place] * g[STRIDE]
        if not holds(address, names[place]) or load(address + FLAGS) != stamps[place]:
            return False
    return True


@kernel(inline=True)
def _read_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    gone = 0
    base, stride, capacity = g[BASE], g[STRIDE], g[ROWS]
    names, rows, stamps = visited[0], visited[1], visited[2]
    first = shape[q.BEFORE] - 1
    for i in range(len(ids)):
        if i + 1 < len(ids):
            for k in range(AHEAD):
                fetch(base + (ids[i + 1] + k) % capacity * stride, stride)
        taken[i] = 0
        gone += 1
        if (
            ids[i] < 0
            or not _visit(g, ids[i], ids[i] % capacity, first, names, rows, stamps)
            or stamps[first] & FINAL
            or not walk_back(g, shape[q.BEFORE], names, stamps)
        ):
            continue
        steps, last = _walk(g, shape, names, rows, stamps)
        if steps == 0:
            continue
        there = (steps - 1) // shape[q.DILATION] + 1
        _copy_rows(g, fields, shape, i, names, rows, there)
        _describe(g, shape, i, names, rows, there)
        after_loads()
        if _unchanged(g, first, last, names, rows, stamps) and same_rows(
            g, names, stamps, first - 1
        ):
            taken[i] = there
            gone -= 1
    return gone


@kernel(keeps_gil=True)
def read_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    """Read the sequences that begin with the steps of ``ids``.

    ``taken [sequences]``: the places that hold a step, 0 for a sequence that is not there. Returns
    how many are not. ``shape``: see sequence_table.py. ``visited [3, BEFORE + span]``: scratch for
    ids, rows and versions.
    """
    return _read_sequences(g, ids, fields, shape, visited, taken)


@kernel()
def read_many_sequences(g: Any, ids: Any, fields: Any, shape: Any, visited: Any, taken: Any) -> int:
    """As `read_sequences`, for long copies: releases the GIL."""
    return _read_sequences(g, ids, fields, shape, visited, taken)
