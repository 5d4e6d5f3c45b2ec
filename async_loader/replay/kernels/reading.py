"""Kernels that read items: they find the rows, copy them, and check that no writer came between."""

from __future__ import annotations

from typing import Any

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
    ALIVE,
    BASE,
    CAPACITY,
    CURSOR,
    DELETED,
    ENDS,
    FINAL,
    FLAGS,
    ID,
    NEXT,
    ORDERED,
    PREV,
    ROWS,
    STRIDE,
    TERMINATED,
    TOP,
    VERSION_ONE,
)
from async_loader.replay.kernels.linked_rows import copy_linked_rows
from async_loader.replay.kernels.machine import after_loads, copy, load, memzero, peek8
from async_loader.replay.kernels.row_address import AHEAD, at, fetch, get_row, holds


@kernel(inline=True)
def visit(g: Any, name: int, place: int, names: Any, stamps: Any) -> bool:
    """Record the version of a row that is being read.

    Return whether it is there and not being patched.
    """
    address = at(g, name)
    names[place] = name
    stamps[place] = load(address + FLAGS)
    return holds(address, name) and stamps[place] & VERSION_ONE == 0


@kernel(inline=True)
def walk_back(g: Any, depth: int, names: Any, stamps: Any) -> bool:
    """Find the steps before the one at ``depth - 1``, as far as the episode goes; -1 before its
    start.
    """
    for place in range(depth - 1, 0, -1):
        before = names[place]
        if before >= 0:
            before = load(at(g, before) + PREV)
        names[place - 1] = -1
        if before >= 0 and not visit(g, before, place - 1, names, stamps):
            return False
    return True


@kernel(inline=True)
def _walk_on(g: Any, depth: int, n: int, successor: bool, names: Any, stamps: Any) -> int:
    """Find up to ``n`` steps from the one at ``depth - 1`` on.

    Return how many, or 0 if some are missing.

    With ``successor`` the observation after the last of them is visited too. An episode that
    terminated without a final observation has none: its last step replaces it, and the discount of
    0 removes its effect.
    """
    taken = 0
    place = depth - 1
    while taken < n:
        taken += 1
        flags = stamps[place]
        ends = flags & ENDS != 0
        if not successor and (ends or taken == n):
            return taken
        after = load(at(g, names[place]) + NEXT)
        place += 1
        if after < 0:
            names[place] = names[place - 1]
            stamps[place] = stamps[place - 1]
            return taken if ends and flags & TERMINATED else 0
        if not visit(g, after, place, names, stamps):
            return 0
        if ends:
            return taken
    return taken


@kernel(inline=True)
def _walk(
    g: Any, ids: Any, n: int, successor: bool, depth: int, names: Any, stamps: Any, taken: Any
) -> None:
    base, stride, rows = g[BASE], g[STRIDE], g[ROWS]
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            fetch(base + ids[i + AHEAD] % rows * stride, stride)
        if i < 0:
            continue
        taken[i] = 0
        there = (
            ids[i] >= 0
            and visit(g, ids[i], depth - 1, names[i], stamps[i])
            and stamps[i, depth - 1] & FINAL == 0
        )
        if there and walk_back(g, depth, names[i], stamps[i]):
            taken[i] = _walk_on(g, depth, n, successor, names[i], stamps[i])


@kernel(keeps_gil=True)
def walk(
    g: Any, ids: Any, n: int, successor: bool, depth: int, names: Any, stamps: Any, taken: Any
) -> None:
    """Find the rows of each item: ``names [items, depth + n]``, -1 before the episode's start.

    ``taken [items]``: the number of steps in its return, 0 for an item that is gone.
    """
    _walk(g, ids, n, successor, depth, names, stamps, taken)


@kernel()
def walk_on_disk(
    g: Any, ids: Any, n: int, successor: bool, depth: int, names: Any, stamps: Any, taken: Any
) -> None:
    """As `walk`, where a row may have to come from a disk: releases the GIL."""
    _walk(g, ids, n, successor, depth, names, stamps, taken)


@kernel(keeps_gil=True)
def returns(
    g: Any,
    reward: Any,
    names: Any,
    stamps: Any,
    taken: Any,
    depth: int,
    gamma: float,
    total: Any,
    discount: Any,
) -> None:
    """Compute the discounted sum of rewards of each item, and the factor of its last value:
    gamma**k, 0 if it terminated.

    ``reward [rows, values]``, ``total [items, values]``, ``discount [items]``. Sutton and Barto,
    2nd ed., equation 7.1.
    """
    for i in range(len(taken)):
        for v in range(total.shape[1]):
            total[i, v] = 0
        discount[i] = 0.0
        if taken[i] == 0:
            continue
        for v in range(total.shape[1]):
            summed, factor = 0.0, 1.0
            for k in range(taken[i]):
                summed += factor * reward[names[i, depth - 1 + k] % g[ROWS], v]
                factor *= gamma
            total[i, v] = summed
        if stamps[i, depth - 2 + taken[i]] & TERMINATED == 0:
            discount[i] = gamma ** taken[i]


@kernel(inline=True)
def frames_of(g: Any, fields: Any, f: int, target: int, names: Any, end: int) -> None:
    """Copy one field of one step to an address: ``frames`` rows ending at place ``end``, padded
    before the episode's start.
    """
    source, row_bytes, count = fields[f, ROW_ADDRESS], fields[f, ROW_STRIDE], fields[f, NBYTES]
    frames, zeros = fields[f, FRAMES], fields[f, ZERO_PADDED]
    place = end - frames + 1
    first = max(0, place)
    while names[first] < 0:
        first += 1
    while place < first:
        if zeros:
            memzero(target, count)
        else:
            copy(target, source + (names[first] % g[ROWS]) * row_bytes, count)
        target += count
        place += 1
    while place <= end:
        row = names[place] % g[ROWS]
        together = 1
        # a column: rows that lie one behind the other are one copy, which takes two thirds of the
        # time
        if row_bytes == count:
            while place + together <= end and names[place + together] % g[ROWS] == row + together:
                together += 1
        copy(target, source + row * row_bytes, together * count)
        target += together * count
        place += together


@kernel(inline=True)
def same_rows(g: Any, names: Any, stamps: Any, last: int) -> bool:
    """Return whether no row up to place ``last`` was written since it was visited. See NOTE [row
    lock].
    """
    for place in range(last + 1):
        name = names[place]
        if name >= 0:
            address = at(g, name)
            if not holds(address, name) or load(address + FLAGS) != stamps[place]:
                return False
    return True


@kernel(inline=True)
def _copy_items(
    g: Any, fields: Any, names: Any, stamps: Any, taken: Any, depth: int, successor: bool
) -> int:
    gone = 0
    for i in range(len(taken)):
        if taken[i] > 0:
            for f in range(len(fields)):
                anchor = fields[f, ANCHOR]
                frames_of(
                    g,
                    fields,
                    f,
                    fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE],
                    names[i],
                    depth - 1 if anchor == 0 else depth - 1 + taken[i] - (anchor - 1),
                )
            after_loads()
            if not same_rows(
                g,
                names[i],
                stamps[i],
                depth - 1 + taken[i] if successor else depth - 2 + taken[i],
            ):
                taken[i] = 0
        gone += taken[i] == 0
    return gone


@kernel(keeps_gil=True)
def copy_items(
    g: Any, fields: Any, names: Any, stamps: Any, taken: Any, depth: int, successor: bool
) -> int:
    """Copy the items that `walk` found.

    Set ``taken`` to 0 for items that went meanwhile, and return how many did.

    ``fields [fields, 8]``: see field_table.py. Anchors are 0: the step, 1: the row after the last,
    2: the last.
    """
    return _copy_items(g, fields, names, stamps, taken, depth, successor)


@kernel()
def copy_many_items(
    g: Any, fields: Any, names: Any, stamps: Any, taken: Any, depth: int, successor: bool
) -> int:
    """As `copy_items`, for long copies: releases the GIL."""
    return _copy_items(g, fields, names, stamps, taken, depth, successor)


@kernel(inline=True)
def _read(g: Any, ids: Any, fields: Any, taken: Any) -> int:
    base, stride, rows, gone = g[BASE], g[STRIDE], g[ROWS], 0
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            fetch(base + ids[i + AHEAD] % rows * stride, stride)
        if i < 0:
            continue
        taken[i] = 0
        gone += 1
        row = ids[i] % rows
        address = base + row * stride
        stamp = load(address + FLAGS)
        if ids[i] < 0 or not holds(address, ids[i]) or stamp & (VERSION_ONE | FINAL):
            continue
        get_row(fields, i, row, 0)
        after_loads()
        if holds(address, ids[i]) and load(address + FLAGS) == stamp:
            taken[i] = 1
            gone -= 1
    return gone


@kernel(keeps_gil=True)
def read(g: Any, ids: Any, fields: Any, taken: Any) -> int:
    """`walk` and `copy_items` in one kernel, for items of one row each."""
    return _read(g, ids, fields, taken)


@kernel()
def read_many(g: Any, ids: Any, fields: Any, taken: Any) -> int:
    """As `read`, for long copies: releases the GIL."""
    return _read(g, ids, fields, taken)


@kernel(keeps_gil=True)
def read_any(g: Any, numbers: Any, fields: Any, links: Any, ids: Any, rows: Any) -> int:
    """Draw items with equal probability, and read them, in one kernel under the table's lock.

    Addresses in ``fields`` count from ``ids``; ``links``: see link_table.py. Does what
    `random_rows.any_items` and `read` do; no writer comes between, so that no row is checked again.
    Returns how many of ``numbers`` were used, 0 if they were too few or an item could not be read.
    """
    top, alive, used = g[TOP], g[ALIVE], 0
    # a loop of its own: a processor is many such looks ahead, and few copies
    for i in range(len(ids)):
        row = -1
        while row < 0:
            if used == len(numbers):
                return 0
            row = int(numbers[used] * top)
            used += 1
            if peek8(alive + row) == 0:
                row = -1
        rows[i] = row
    return used if copy_rows(g, rows, fields, links, ids) == 0 else 0


@kernel(inline=True)
def copy_rows(g: Any, rows: Any, fields: Any, links: Any, ids: Any) -> int:
    """Copy items, and their ids. Under the table's lock. Return how many could not be read."""
    if len(links):
        return copy_linked_rows(g, rows, fields, ids, links)
    base, stride, block = g[BASE], g[STRIDE], ids.ctypes.data
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            fetch(base + rows[i + AHEAD] * stride, stride)
        if i < 0:
            continue
        row = rows[i]
        ids[i] = load(base + row * stride + ID) - 1
        get_row(fields, i, row, block)
    return 0


@kernel(keeps_gil=True)
def read_rows(g: Any, rows: Any, fields: Any, links: Any, ids: Any) -> int:
    """As `read_any`, for rows that are drawn. Return how many items could not be read."""
    return copy_rows(g, rows, fields, links, ids)


@kernel(keeps_gil=True)
def names_of(g: Any, rows: Any, out: Any) -> None:
    """Fill in the ids of the steps in rows, -1 for an empty row and a deleted step."""
    for i in range(len(rows)):
        address = g[BASE] + rows[i] * g[STRIDE]
        out[i] = -1 if load(address + FLAGS) & (FINAL | DELETED) else load(address + ID) - 1


@kernel(inline=True)
def row_of(g: Any, name: int) -> int:
    """Return the row of an id, -1 if it is gone.

    Deleted steps and final observations count as gone.
    """
    if name < 0:
        return -1
    row = name % g[ROWS]
    address = g[BASE] + row * g[STRIDE]
    return row if holds(address, name) and load(address + FLAGS) & (FINAL | DELETED) == 0 else -1


@kernel(keeps_gil=True)
def find_steps(g: Any, ids: Any, rows: Any) -> int:
    """As `find`, also for deleted steps, which returns and stacks still show."""
    there = 0
    for i in range(len(ids)):
        name = ids[i]
        row = row_of(g, name)
        if row < 0 and g[ORDERED] and name >= 0 and name >= g[CURSOR] - g[CAPACITY]:
            address = g[BASE] + (name % g[ROWS]) * g[STRIDE]
            if holds(address, name) and load(address + FLAGS) & FINAL == 0:
                row = name % g[ROWS]
        rows[i] = row
        there += row >= 0
    return there


@kernel(keeps_gil=True)
def find(g: Any, ids: Any, rows: Any) -> int:
    """Fill in the rows of ids, as `row_of`. Return how many are there."""
    there = 0
    for i in range(len(ids)):
        rows[i] = row_of(g, ids[i])
        there += rows[i] >= 0
    return there
