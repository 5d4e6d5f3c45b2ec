"""Draws transitions by the places that a ring of calls gives them, in rows or still gathered."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base import place_table as p
from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.row_format import BASE, ROWS, STRIDE
from async_loader.replay.kernels.machine import call32, copy, peek8, poke_float32
from async_loader.replay.kernels.row_address import AHEAD, at_row, fetch, holds


@kernel(inline=True)
def _draw(ring: Any, most: int) -> int:
    """Draw a number from 0 to ``most - 1``, as ``numpy.random.randint`` does.

    Of as many bits as ``most - 1`` has, the first that are not beyond it. For up to 2**32.
    """
    highest = most - 1
    if highest == 0:
        return 0
    mask = highest
    for shift in (1, 2, 4, 8, 16):
        mask |= mask >> shift
    drawn = highest + 1
    while drawn > highest:
        drawn = call32(ring[p.RANDOM], ring[p.RANDOM_STATE]) & mask
    return drawn


@kernel(inline=True)
def _draw_places(ring: Any, ids: Any) -> None:
    """Fill in the ids at places that are drawn: first all positions, then all environments."""
    width = ring[p.ENVS]
    for i in range(len(ids)):
        age = ring[p.NEXT] - 1 - _draw(ring, ring[p.MOST])
        if age < 0:
            age += ring[p.SIZE]
        ids[i] = ring[p.NEWEST] - age * width
    if width > 1:
        for i in range(len(ids)):
            ids[i] += _draw(ring, width)


@kernel(keeps_gil=True)
def draw_places(g: Any, ring: Any, fields: Any, gathered: Any, ids: Any) -> int:
    """Draw places with equal probability, with replacement, and read their transitions into
    arrays. Under the table's lock, and that of the random numbers.

    ``ring``: see place_table.py; it has the addresses of the arrays, and ``fields [fields, 8]`` has
    their strides. Of the last field a float32 says whether it is true. ``gathered [fields, 5]``:
    where steps lie that are only gathered. ``ids`` is filled in. Returns how many are not there.
    """
    _draw_places(ring, ids)
    base, stride, rows = g[BASE], g[STRIDE], g[ROWS]
    last, first = len(fields) - 1, ring[p.GATHERED_FROM]
    gone = 0
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            fetch(base + ids[i + AHEAD] % rows * stride, stride)
        if i < 0:
            continue
        name = ids[i]
        row = name % rows
        if name < first and (name < 0 or not holds(at_row(g, row), name)):
            gone += 1
            continue
        for f in range(len(fields)):
            if name >= first:
                source = gathered[f, ARRAY_ADDRESS] + (name - first) * gathered[f, ARRAY_STRIDE]
            else:
                source = fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE]
            target = ring[p.TARGETS + f] + i * fields[f, ARRAY_STRIDE]
            if f == last:
                poke_float32(target, 1.0 if peek8(source) else 0.0)
            else:
                copy(target, source, fields[f, NBYTES])
    return gone
