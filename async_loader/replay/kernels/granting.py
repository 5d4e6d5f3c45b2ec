"""Rows that other processes fill: granted, adopted when they are full, or abandoned. Under the table's lock."""

from __future__ import annotations

from typing import Any

from async_loader.replay.compiled import kernel
from async_loader.replay.kernels.machine import peek8, poke8, poke_float
from async_loader.replay.kernels.writing import next_id, retire, settle
from async_loader.replay.rows import CAPACITY, CURSOR, GIVEN, HELD, ROWS


@kernel(keeps_gil=True)
def grant(g: Any, count: int, changes: Any) -> int:
    """Take up to ``count`` rows that lie one behind the other out of the order; the first id, ``changes[2]`` of them."""
    first = next_id(g, changes)
    taken = 1
    while taken < count:
        row = g[CURSOR] % g[ROWS]
        if row == 0 or peek8(g[HELD] + row):
            break
        next_id(g, changes)
        taken += 1
    for k in range(taken):
        poke8(g[HELD] + (first + k) % g[ROWS], 1)
    changes[2] = taken
    return first


@kernel(keeps_gil=True)
def adopt(g: Any, first: int, count: int, streams: Any, flags: Any, given: Any, changes: Any) -> None:
    """Publish rows that another process has filled."""
    for k in range(count):
        row = (first + k) % g[ROWS]
        poke8(g[HELD] + row, 0)
        if g[GIVEN]:
            poke_float(g[GIVEN] + 8 * row, given[k])
        settle(g, first + k, streams[k], flags[k], changes)


@kernel(keeps_gil=True)
def abandon(g: Any, first: int, count: int) -> None:
    """Rows that were granted and will not be filled: nothing is there until the order comes round again."""
    for k in range(count):
        poke8(g[HELD] + (first + k) % g[ROWS], 0)


@kernel(keeps_gil=True)
def room_ahead(g: Any, most: int, changes: Any) -> int:
    """How many of the next ``most`` rows are free. If less than two are, these are passed by.

    What passes over many held rows at once may see an item die and another one be born in the same row; see `write`.
    """
    free = 0
    for k in range(most):
        free += peek8(g[HELD] + (g[CURSOR] + k) % g[ROWS]) == 0
    if free < 2:
        for _ in range(most):
            retire(g, g[CURSOR] - g[CAPACITY], changes)
            g[CURSOR] += 1
    return free
