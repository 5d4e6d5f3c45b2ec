"""Copies and computes the fields of one item, whose rows have been found."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import field_table as f
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import BASE, PREV, STRIDE
from async_loader.replay.kernels.machine import (
    copy,
    copy_run,
    load,
    memzero,
    peek_float,
    peek_float32,
    poke8,
    poke64,
    poke_float,
    poke_float32,
)

_EIGHT = 0x0101010101010101
"""Eight bools that are true."""


@kernel(inline=True, always=True)
def _copy_frames(fields: Any, k: int, target: int, visited: Any, begin: int, end: int) -> None:
    """Copy a stack whose newest frame is at the place ``end``, of an episode that begins at the
    place ``begin`` at the earliest; padded before the episode's start.
    """
    source, row_bytes, count = (
        fields[k, f.ROW_ADDRESS],
        fields[k, f.ROW_STRIDE],
        fields[k, f.NBYTES],
    )
    place = end - fields[k, f.FRAMES] + 1
    first = max(begin, place)
    while visited.names[first] < 0:
        first += 1
    while place < first:
        if fields[k, f.ZERO_PADDED]:
            memzero(target, count)
        else:
            copy(target, source + visited.rows[first] * row_bytes, count)
        target += count
        place += 1
    while place <= end:
        row, together = visited.rows[place], 1
        # a column: rows that lie one behind the other are one copy, which takes two thirds of the
        # time
        if row_bytes == count:
            while place + together <= end and visited.rows[place + together] == row + together:
                together += 1
        copy(target, source + row * row_bytes, together * count)
        target += together * count
        place += together


@kernel(inline=True, always=True)
def _run(visited: Any, k: int, there: int, on: int, regular: int) -> Any:
    """Return how many rows from the step ``k`` on lie equally far from each other, and how far.

    ``on``: 1 for the rows after the steps. ``regular``: how many do from the first step on.
    """
    row, together = visited.rows[visited.axis[k] + on], 1
    if k + 1 >= there:
        return 1, 1
    apart = visited.rows[visited.axis[k + 1] + on] - row
    if k == 0 and on == 0 and regular:
        return min(regular, there), apart
    while (
        k + together < there
        and visited.rows[visited.axis[k + together] + on]
        - visited.rows[visited.axis[k + together - 1] + on]
        == apart
    ):
        together += 1
    return together, apart


@kernel(inline=True, always=True)
def _copy_steps(fields: Any, k: int, target: int, visited: Any, there: int, regular: int) -> None:
    """Copy a field of each step, and zeros where there are none."""
    count, row_bytes, frames = fields[k, f.NBYTES], fields[k, f.ROW_STRIDE], fields[k, f.FRAMES]
    on = 1 if fields[k, f.SHOWN] == f.AFTER else 0
    there = min(there, fields[k, f.TIMES])
    empty, step = fields[k, f.TIMES] - there, 0
    while step < there:
        if frames > 1:
            end, together = visited.axis[step] + on, 1
            _copy_frames(fields, k, target, visited, visited.begins[end], end)
        else:
            together, apart = _run(visited, step, there, on, regular)
            source = fields[k, f.ROW_ADDRESS] + visited.rows[visited.axis[step] + on] * row_bytes
            copy_run(target, source, apart * row_bytes, together, count)
        target += together * frames * count
        step += together
    if empty:
        memzero(target, empty * frames * count)


@kernel(inline=True)
def _add_up(fields: Any, k: int, target: int, plan: Any, rows: Any, steps: int) -> None:
    """Sum up the rewards of a return. Sutton and Barto, 2nd ed., equation 7.1."""
    source, row_bytes, unit = fields[k, f.ROW_ADDRESS], fields[k, f.ROW_STRIDE], fields[k, f.UNIT]
    gamma, first = peek_float(plan.ctypes.data + 8 * (f.NUMBERS + 1)), plan[f.BEFORE] - 1
    for number in range(0, fields[k, f.NBYTES], unit):
        summed, factor = 0.0, 1.0
        for step in range(steps):
            place = source + rows[first + step] * row_bytes + number
            summed += factor * (peek_float32(place) if unit == 4 else peek_float(place))
            factor *= gamma
        if unit == 4:
            poke_float32(target + number, summed)
        else:
            poke_float(target + number, summed)


@kernel(inline=True, always=True)
def _describe(g: Any, kind: int, times: int, target: int, visited: Any, there: int) -> None:
    """Fill in the mask, where episodes begin, or the ids of the steps."""
    if kind == f.STEP_INDEX:
        for k in range(there):
            poke64(target + 8 * k, visited.names[visited.axis[k]])
        for k in range(there, times):
            poke64(target + 8 * k, -1)
        return
    memzero(target, times)
    if kind == f.MASK:
        full = there // 8 * 8
        for k in range(0, full, 8):
            poke64(target + k, _EIGHT)
        for k in range(full, there):
            poke8(target + k, 1)
        return
    if load(g[BASE] + visited.rows[visited.axis[0]] * g[STRIDE] + PREV) < 0:
        poke8(target, 1)
    for k in range(1, there):
        if visited.begins[visited.axis[k]] > visited.axis[k - 1]:
            poke8(target + k, 1)


@kernel(inline=True, always=True)
def copy_item(
    g: Any,
    fields: Any,
    plan: Any,
    i: int,
    block: int,
    visited: Any,
    steps: int,
    apart: int,
    goal: int,
    last: int,
    ended: bool,
) -> None:
    """Fill in the fields of item ``i``.

    Parameters
    ----------
    apart : int
        How far the rows of its steps lie from each other, 0 if not equally far.
    goal : int
        Not negative: the place ``last`` has the row of its new goal.
    ended : bool
        Whether its last step terminated.
    """
    first, there = plan[f.BEFORE] - 1, (steps - 1) // plan[f.DILATION] + 1
    regular = there if apart else -1
    for k in range(len(fields)):
        shown, times, count = fields[k, f.SHOWN], fields[k, f.TIMES], fields[k, f.NBYTES]
        target = block + fields[k, f.ARRAY_ADDRESS] + i * fields[k, f.ARRAY_STRIDE]
        if shown <= f.GOAL:
            if times:
                if regular < 0:
                    regular, _ = _run(visited, 0, there, 0, 0)
                _copy_steps(fields, k, target, visited, there, regular)
                continue
            end = first
            if shown == f.GOAL:
                end = last
                if goal < 0:
                    memzero(target, count)
                    continue
            elif shown != f.STEP:
                end = first + steps - (shown == f.LAST)
            if fields[k, f.FRAMES] == 1:
                copy(
                    target,
                    fields[k, f.ROW_ADDRESS] + visited.rows[end] * fields[k, f.ROW_STRIDE],
                    count,
                )
            else:
                _copy_frames(fields, k, target, visited, 0, end)
        elif shown == f.RETURN:
            _add_up(fields, k, target, plan, visited.rows, steps)
        elif shown == f.DISCOUNT:
            place = plan.ctypes.data + 8 * (f.NUMBERS + steps)
            poke_float32(target, 0.0 if ended else peek_float(place))
        elif shown == f.RELABELLED:
            poke8(target, goal >= 0)
        elif shown == f.STEPS:
            poke64(target, steps if goal >= 0 else 0)
        else:
            _describe(g, shown, times, target, visited, there)
