"""Reads items that show other rows than their own, in one pass under the table's lock.

Does what `walk`, `returns` and `copy_items` do without the lock, with the same result: see
reading.py for the rules. No writer comes between, so that no row is checked a second time.
"""

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
from async_loader.replay.base.link_table import (
    BEFORE,
    DISCOUNTED,
    DISCOUNTS,
    FOLLOWED,
    GAMMA,
    NUMBER_BYTES,
    NUMBERS,
    REWARD,
    STEPS,
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
    TERMINATED,
    VERSION_ONE,
)
from async_loader.replay.kernels.machine import (
    copy,
    load,
    memzero,
    peek64,
    peek_float,
    peek_float32,
    poke64,
    poke_float,
    poke_float32,
    stack_words,
)
from async_loader.replay.kernels.row_address import AHEAD, fetch, holds


@kernel(inline=True)
def neighbour(row: int, name: int, other: int, rows: int) -> int:
    """Return the row of the id ``other``, from the row of the id ``name``: a division takes longer
    than to read a small row.
    """
    found = row + (other - name)
    if found >= rows:
        found -= rows
    elif found < 0:
        found += rows
    return found if 0 <= found < rows else other % rows


@kernel(inline=True)
def _fetch_run(g: Any, row: int, name: int, other: int, count: int) -> None:
    """Begin to load ``count`` rows of a stream, from the one of the id ``other`` on.

    They mostly lie as far from each other as ``other`` does from ``name``.
    """
    if other < 0:
        return
    step, place = neighbour(row, name, other, g[ROWS]) - row, row
    for _ in range(count):
        place += step
        if not 0 <= place < g[ROWS]:
            break
        fetch(g[BASE] + place * g[STRIDE], g[STRIDE])


@kernel(inline=True)
def _fetch_linked(g: Any, row: int, before: int, after: int) -> None:
    """Begin to load the rows that an item shows beside its own."""
    address = g[BASE] + row * g[STRIDE]
    name = load(address + ID) - 1
    if after:
        _fetch_run(g, row, name, load(address + NEXT), after)
    if before:
        _fetch_run(g, row, name, load(address + PREV), before)


@kernel(inline=True)
def _find_before(g: Any, row: int, name: int, before: int, shown: int) -> bool:
    """Fill in the rows of the steps before the item, -1 before the episode's start.

    Return whether all are there.
    """
    base, stride = g[BASE], g[STRIDE]
    for place in range(before - 2, -1, -1):
        if row >= 0:
            earlier = load(base + row * stride + PREV)
            if earlier < 0:
                row = -1
            else:
                row, name = neighbour(row, name, earlier, g[ROWS]), earlier
                address = base + row * stride
                if not holds(address, name) or load(address + FLAGS) & VERSION_ONE:
                    return False
        poke64(shown + 8 * place, row)
    return True


@kernel(inline=True)
def _find_after(
    g: Any, row: int, name: int, before: int, steps: int, followed: bool, shown: int
) -> tuple[int, int]:
    """Fill in the rows of the return, and of the observation after it.

    Return the number of steps, 0 if rows are missing, and the flags of the last.
    """
    base, stride = g[BASE], g[STRIDE]
    taken, place = 0, before - 1
    flags = load(base + row * stride + FLAGS)
    while True:
        taken += 1
        ends = flags & ENDS != 0
        if not followed and (ends or taken == steps):
            return taken, flags
        after = load(base + row * stride + NEXT)
        place += 1
        if after < 0:
            poke64(shown + 8 * place, row)
            return taken if ends and flags & TERMINATED else 0, flags
        row, name = neighbour(row, name, after, g[ROWS]), after
        address = base + row * stride
        following = load(address + FLAGS)
        if not holds(address, name) or following & VERSION_ONE:
            return 0, flags
        poke64(shown + 8 * place, row)
        if ends or taken == steps:
            return taken, flags
        flags = following


@kernel(inline=True)
def _copy_frames(fields: Any, f: int, target: int, shown: int, end: int) -> None:
    """Copy a stack whose newest frame is at place ``end``, padded before the episode's start."""
    source, row_bytes, count = fields[f, ROW_ADDRESS], fields[f, ROW_STRIDE], fields[f, NBYTES]
    place = end - fields[f, FRAMES] + 1
    first = max(0, place)
    while peek64(shown + 8 * first) < 0:
        first += 1
    for frame in range(place, end + 1):
        if frame < first and fields[f, ZERO_PADDED]:
            memzero(target, count)
        else:
            copy(target, source + peek64(shown + 8 * max(frame, first)) * row_bytes, count)
        target += count


@kernel(inline=True)
def _add_up(fields: Any, links: Any, i: int, block: int, shown: int, taken: int) -> None:
    """Sum up the rewards of item ``i``. Sutton and Barto, 2nd ed., equation 7.1."""
    f, nbytes = links[REWARD], links[NUMBER_BYTES]
    source, row_bytes = fields[f, ROW_ADDRESS], fields[f, ROW_STRIDE]
    target = block + fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
    gamma = peek_float(links.ctypes.data + 8 * GAMMA)
    first = shown + 8 * (links[BEFORE] - 1)
    for number in range(0, links[NUMBERS] * nbytes, nbytes):
        summed, factor = 0.0, 1.0
        for k in range(taken):
            place = source + peek64(first + 8 * k) * row_bytes + number
            summed += factor * (peek_float32(place) if nbytes == 4 else peek_float(place))
            factor *= gamma
        if nbytes == 4:
            poke_float32(target + number, summed)
        else:
            poke_float(target + number, summed)


@kernel(inline=True)
def copy_linked_rows(g: Any, rows: Any, fields: Any, ids: Any, links: Any) -> int:
    """Copy the items in ``rows``, and their ids. Under the table's lock.

    Addresses in ``fields`` count from ``ids``. Returns how many items miss a row that they show:
    what is in their place is undefined.
    """
    base, stride, block = g[BASE], g[STRIDE], ids.ctypes.data
    before, steps, followed = links[BEFORE], links[STEPS], links[FOLLOWED] != 0
    after = steps if followed else steps - 1
    gamma, powered, discount = peek_float(links.ctypes.data + 8 * GAMMA), 0, 1.0
    shown, missing = stack_words(), 0
    for i in range(-2 * AHEAD, len(ids)):
        if i + 2 * AHEAD < len(ids):
            fetch(base + rows[i + 2 * AHEAD] * stride, stride)
        if 0 <= i + AHEAD < len(ids):
            _fetch_linked(g, rows[i + AHEAD], before - 1, after)
        if i < 0:
            continue
        row = rows[i]
        address = base + row * stride
        name = load(address + ID) - 1
        ids[i] = name
        poke64(shown + 8 * (before - 1), row)
        if name < 0 or load(address + FLAGS) & (FINAL | VERSION_ONE):
            missing += 1
            continue
        if not _find_before(g, row, name, before, shown):
            missing += 1
            continue
        taken, flags = _find_after(g, row, name, before, steps, followed, shown)
        if taken == 0:
            missing += 1
            continue
        for f in range(len(fields)):
            anchor = fields[f, ANCHOR]
            end = before - 1 if anchor == 0 else before - 1 + taken - (anchor - 1)
            target = block + fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE]
            if fields[f, FRAMES] == 1:
                source = fields[f, ROW_ADDRESS] + peek64(shown + 8 * end) * fields[f, ROW_STRIDE]
                copy(target, source, fields[f, NBYTES])
            else:
                _copy_frames(fields, f, target, shown, end)
        if links[REWARD] >= 0:
            _add_up(fields, links, i, block, shown, taken)
        if links[DISCOUNTED]:
            if taken != powered:  # most returns are of equal length
                powered, discount = taken, gamma**taken
            ended = flags & TERMINATED != 0
            poke_float32(block + links[DISCOUNTS] + 4 * i, 0.0 if ended else discount)
    return missing
