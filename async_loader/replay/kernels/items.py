"""Kernels on steps that are in the table: which are items, and which rows may be overwritten."""

from __future__ import annotations

from typing import Any

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
    ID,
    LAST,
    NEXT,
    ROW_CHANGED,
    STATE_CHANGED,
    STRIDE,
    TAIL,
    VERSION_ONE,
)
from async_loader.replay.kernels.machine import (
    before_stores,
    load,
    peek8,
    peek64,
    poke_float,
    store,
)
from async_loader.replay.kernels.row_address import at, there
from async_loader.replay.kernels.writing import end_item, note


@kernel(inline=True)
def _is_last(g: Any, name: int, streams: int) -> bool:
    """Return whether this step is the last of an open episode."""
    for stream in range(streams):  # noqa: SIM110  # kernels have no generators
        if peek64(g[LAST] + 8 * stream) == name:
            return True
    return False


@kernel(inline=True)
def _in_use(g: Any, name: int, streams: int) -> bool:
    """Return whether a row is still needed: by a step that is or may become an item, or as the past
    of one.
    """
    for k in range(g[DEPTH]):
        if not there(g, name):
            return False
        if load(at(g, name) + FLAGS) & (FINAL | DELETED) == 0:
            return True
        after = load(at(g, name) + NEXT)
        if after < 0:
            return k + 1 < g[DEPTH] and _is_last(g, name, streams)
        name = after
    return False


@kernel(keeps_gil=True)
def room(g: Any, streams: int) -> int:
    """Return how many rows may be written in order before one in use is overwritten.

    Amortised O(1).

    A row that is not in use stays so, and the search continues where it ended last time.
    """
    tail = max(g[TAIL], g[CURSOR] - g[CAPACITY])
    while tail < g[CURSOR] and not _in_use(g, tail, streams):
        tail += 1
    g[TAIL] = tail
    return tail + g[CAPACITY] - g[CURSOR]


@kernel(keeps_gil=True)
def use_up(times: Any, dirty: Any, rows: Any, most: int, kept: Any) -> None:
    """Count a draw of ``rows``, in order; set ``kept[i]`` to ``i`` if the item had a draw left."""
    for i in range(len(rows)):
        if times[rows[i]] < most:
            times[rows[i]] += 1
            dirty[rows[i]] |= STATE_CHANGED
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
    note(g, row, STATE_CHANGED)
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
            note(g, rows[i], ROW_CHANGED)
    before_stores()
