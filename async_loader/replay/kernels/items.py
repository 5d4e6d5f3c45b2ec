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
    HELD,
    ID,
    LAST,
    LOOKAHEAD,
    NEXT,
    PREV,
    ROW_CHANGED,
    ROWS,
    STATE_CHANGED,
    STRIDE,
    TAIL,
    VERSION_ONE,
    WAITING,
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
from async_loader.replay.kernels.writing import deactivate, end_item, note, retire


@kernel(keeps_gil=True)
def drop_pending(g: Any, steps: int, streams: int, changes: Any) -> None:
    """Raise LOOKAHEAD to ``steps``: items at the open end of a stream that have fewer successors
    wait for them.

    They will be items again: ``changes[3]`` says how many of those in DIED do not count as deleted.
    """
    g[LOOKAHEAD] = steps
    for stream in range(streams):
        name = peek64(g[LAST] + 8 * stream)
        for _ in range(g[LOOKAHEAD]):
            if not there(g, name):
                break
            if peek8(g[ALIVE] + name % g[ROWS]):
                deactivate(g, name, changes)
                g[WAITING] += 1
                changes[3] += 1
            name = load(at(g, name) + PREV)


@kernel(inline=True)
def _is_last(g: Any, name: int, streams: int) -> bool:
    """Whether an open episode goes on after this step."""
    for stream in range(streams):  # noqa: SIM110  # kernels have no generators
        if peek64(g[LAST] + 8 * stream) == name:
            return True
    return False


@kernel(inline=True)
def _in_use(g: Any, name: int, streams: int) -> bool:
    """Whether a row holds what is still to be drawn: a step that is or may become an item, or the
    past of one.
    """
    if peek8(g[HELD] + name % g[ROWS]):
        return True
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
    """Rows that may be written in order before one that is in use would be overwritten. Amortised
    O(1).

    What is not in use never is again, so the search goes on where it ended the last time.
    """
    tail = max(g[TAIL], g[CURSOR] - g[CAPACITY])
    while tail < g[CURSOR] and not _in_use(g, tail, streams):
        tail += 1
    g[TAIL] = tail
    return tail + g[CAPACITY] - g[CURSOR]


@kernel(keeps_gil=True)
def expire_old(g: Any, changes: Any) -> None:
    """End what lies before the newest CAPACITY rows: a loaded table may have kept more of them."""
    for name in range(max(0, g[CURSOR] - g[ROWS]), g[CURSOR] - g[CAPACITY]):
        retire(g, name, changes)


@kernel(keeps_gil=True)
def use_up(times: Any, dirty: Any, rows: Any, most: int, kept: Any, sampled: Any) -> None:
    """Count a draw of ``rows``, in order; ``kept[i]`` becomes ``i`` where the item had a draw left,
    and stays as it is elsewhere.

    One call: a draw that is interrupted knows what was counted.
    """
    for i in range(len(rows)):
        if times[rows[i]] < most:
            times[rows[i]] += 1
            dirty[rows[i]] |= STATE_CHANGED
            kept[i] = i
            sampled[0] += 1


@kernel(keeps_gil=True)
def remove(g: Any, rows: Any, changes: Any) -> None:
    """The items of these rows are no more, and steps that are no items yet never will be."""
    for i in range(len(rows)):
        if rows[i] >= 0:
            name = load(g[BASE] + rows[i] * g[STRIDE] + ID) - 1
            if name >= 0:
                end_item(g, name, changes)


@kernel(keeps_gil=True)
def forget(g: Any, rows: Any, changes: Any) -> None:
    """The items of these rows are no more, and the rows stay as they are."""
    for i in range(len(rows)):
        # a row is the name of its first step, and only the row matters
        deactivate(g, rows[i], changes)


@kernel(inline=True)
def note_priority(g: Any, row: int, priority: float) -> bool:
    """Note the new priority of a step; whether that is an item."""
    if g[GIVEN]:
        poke_float(g[GIVEN] + 8 * row, priority)
    note(g, row, STATE_CHANGED)
    return peek8(g[ALIVE] + row) != 0


@kernel(keeps_gil=True)
def note_priorities(g: Any, rows: Any, priority: Any) -> int:
    """Note new priorities of steps; how many of those are items."""
    alive = 0
    for i in range(len(rows)):
        alive += note_priority(g, rows[i], priority[i])
    return alive


@kernel(keeps_gil=True)
def turn_version(g: Any, rows: Any, odd: bool) -> None:
    """Before rows are patched in place (``odd``), and after.

    See NOTE [row lock]. Twice is as good as once.
    """
    before_stores()
    for i in range(len(rows)):
        if rows[i] >= 0:
            address = g[BASE] + rows[i] * g[STRIDE] + FLAGS
            if (load(address) & VERSION_ONE != 0) != odd:
                store(address, load(address) + VERSION_ONE)
            note(g, rows[i], ROW_CHANGED)
    before_stores()
