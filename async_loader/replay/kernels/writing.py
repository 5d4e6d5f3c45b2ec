"""Kernels that write rows, link them, and make items of them. Under the table's lock."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import (
    ALIVE,
    AWAITS,
    BORN,
    CAPACITY,
    COUNT,
    CURSOR,
    DELETED,
    DEPTH,
    DIED,
    DIRTY,
    DONE_FIELD,
    ENDS,
    FINAL,
    FLAGS,
    FLAGS_AT,
    FOLLOWED,
    GIVEN,
    ID,
    LAST,
    LOOKAHEAD,
    NAMES,
    NEXT,
    ORDERED,
    PASSED,
    PREV,
    PRIORITY_AT,
    ROWS,
    SHOWN,
    TELLING,
    TERMINATED,
    TERMINATED_FIELD,
    TOP,
    TRUNCATED,
    TRUNCATED_FIELD,
    VERSION_ONE,
)
from async_loader.replay.kernels.machine import (
    after_loads,
    at,
    at_row,
    before_stores,
    copy,
    load,
    peek8,
    peek32,
    peek64,
    peek_float,
    poke8,
    poke64,
    poke_float,
    prefetch,
    put_row,
    store,
    there,
    there_at,
)


@kernel(keeps_gil=True)
def retire_steps(g: Any, first: int, stop: int, changes: Any) -> None:
    """Retire the steps of these ids: the items that show them end."""
    for name in range(first, stop):
        retire(g, name, name % g[ROWS], changes)


@kernel(keeps_gil=True)
def raise_floor(word: int, floor: int) -> None:
    """Store the first position that may be read, before anything is written below it."""
    store(word, floor)
    before_stores()


@kernel(keeps_gil=True)
def put_values(ring: int, size: int, positions: Any, source: int, starts: Any, counts: Any) -> None:
    """Copy compressed values from ``source + starts[i]`` to their positions in the ring."""
    for i in range(len(positions)):
        copy(ring + positions[i] % size, source + starts[i], counts[i])


@kernel()
def take_values(
    ring: int, size: int, word: int, positions: Any, counts: Any, target: int, starts: Any
) -> int:
    """Copy compressed values from the ring to ``target + starts[i]``.

    Return the first position that was still whole when all were copied: the floor.
    """
    for i in range(len(positions)):
        copy(target + starts[i], ring + positions[i] % size, counts[i])
    after_loads()
    return load(word)


@kernel()
def copy_values(targets: Any, sources: Any, nbytes: int) -> None:
    """Copy values of ``nbytes`` from addresses to addresses."""
    for i in range(len(targets)):
        copy(targets[i], sources[i], nbytes)


_AHEAD = 16
"""Rows from the request of a row's head to its use."""


@kernel(inline=True)
def _set_end_field(g: Any, row: int, field: int) -> None:
    """Set a field that tells how an episode ended to true."""
    for k in range(g[field + 2]):
        poke8(g[field] + row * g[field + 1] + k, (g[field + 3] >> (8 * k)) & 255)


@kernel(inline=True)
def _says(g: Any, row: int, field: int) -> bool:
    """Return whether a field that tells how an episode ended is not zero."""
    says = 0
    for k in range(g[field + 2]):
        says |= peek8(g[field] + row * g[field + 1] + k)
    return says != 0


@kernel(inline=True, always=True)
def _told(g: Any, row: int, flags: int) -> int:
    """Return the flags of a step, with those that its fields tell. See NOTE [done]."""
    if _says(g, row, TERMINATED_FIELD):
        flags |= TERMINATED
    if _says(g, row, TRUNCATED_FIELD):
        flags |= TRUNCATED
    if flags & TRUNCATED == 0 and _says(g, row, DONE_FIELD):
        flags |= TERMINATED
    return flags


@kernel(inline=True)
def note(g: Any, row: int) -> None:
    """Note that a row has changed since the last save."""
    poke8(g[DIRTY] + row, 1)


@kernel(inline=True)
def flag(g: Any, name: int, row: int, flags: int) -> None:
    """Add flags to a published step in its row. See NOTE [row lock]."""
    if not there_at(g, name, row):
        return
    address = at_row(g, row) + FLAGS
    before = load(address)
    if before & flags == flags:
        return
    store(address, before + VERSION_ONE)
    before_stores()
    if flags & TERMINATED:
        _set_end_field(g, row, TERMINATED_FIELD)
        _set_end_field(g, row, DONE_FIELD)
    if flags & TRUNCATED:
        _set_end_field(g, row, TRUNCATED_FIELD)
    store(address, (before + 2 * VERSION_ONE) | flags)
    note(g, row)


@kernel(inline=True)
def deactivate(g: Any, row: int, changes: Any) -> None:
    """End the item in that row, if there is one."""
    if peek8(g[ALIVE] + row):
        poke8(g[ALIVE] + row, 0)
        g[COUNT] -= 1
        poke64(g[DIED] + 8 * changes[1], row)
        changes[1] += 1


@kernel(inline=True, always=True)
def end_item(g: Any, name: int, row: int, changes: Any) -> None:
    """As `deactivate`; and the step never becomes an item again."""
    flag(g, name, row, DELETED)
    deactivate(g, row, changes)


@kernel(inline=True)
def _pass(g: Any, row: int, changes: Any) -> None:
    """Note a step that sequences may end with, and that is not in BORN."""
    if g[PASSED]:
        poke64(g[PASSED] + 8 * changes[4], row)
        changes[4] += 1


@kernel(inline=True, always=True)
def _activate(g: Any, name: int, row: int, tells: bool, changes: Any) -> None:
    """Make a step an item, unless a row that it needs is gone or is about to go.

    ``tells``: note a deleted one, whose turn it is.
    """
    if not there_at(g, name, row) or load(at_row(g, row) + FLAGS) & FINAL or peek8(g[ALIVE] + row):
        return
    if load(at_row(g, row) + FLAGS) & DELETED:
        if tells:
            _pass(g, row, changes)
        return
    oldest = name
    for _ in range(g[DEPTH] - 1):
        before = load(at(g, oldest) + PREV)
        if before < 0:
            break
        if not there(g, before):
            oldest = -1
            break
        oldest = before
    if oldest < 0 or (g[ORDERED] and oldest < g[CURSOR] - g[CAPACITY]):
        flag(g, name, row, DELETED)  # its past is overwritten
        return
    poke8(g[ALIVE] + row, 1)
    g[COUNT] += 1
    poke64(g[BORN] + 8 * changes[0], row)
    changes[0] += 1


@kernel(inline=True, always=True)
def retire(g: Any, name: int, row: int, changes: Any) -> None:
    """Retire a step that leaves the newest `capacity`: the items that show it end."""
    if not there_at(g, name, row):
        return
    end_item(g, name, row, changes)
    for _ in range(g[DEPTH] - 1):
        name = load(at_row(g, row) + NEXT)
        row = name % g[ROWS]
        if not there_at(g, name, row):
            return
        end_item(g, name, row, changes)


@kernel(inline=True, always=True)
def _next_row(g: Any, free: int, changes: Any) -> Any:
    """Return the next id, and its row, which is marked as being written: the next one in order, or
    ``free``.
    """
    name = g[CURSOR]
    if free < 0:
        g[CURSOR] += 1
        row = name % g[ROWS]
        oldest = row - g[CAPACITY]
        if oldest < 0:
            oldest += g[ROWS]
        prefetch(at_row(g, oldest + _AHEAD) + FLAGS)
        retire(g, name - g[CAPACITY], oldest, changes)
    else:
        row = free
        name += (row - name) % g[ROWS]
        g[CURSOR] = name + 1
    g[TOP] = max(g[TOP], row + 1)
    store(at_row(g, row) + ID, 0)
    before_stores()
    return name, row


@kernel(inline=True)
def _mature(g: Any, last: int, changes: Any) -> None:
    """Make items of the steps that waited for successors: their episode has ended with ``last``."""
    if g[LOOKAHEAD] == 0 or not there(g, last):
        return
    name = last
    for _ in range(g[LOOKAHEAD] - 1):
        before = load(at(g, name) + PREV)
        if before < 0 or not there(g, before):
            break
        name = before
    while 0 <= name < last:
        after = load(at(g, name) + NEXT)
        _activate(g, name, name % g[ROWS], False, changes)
        name = after
    _activate(g, last, last % g[ROWS], True, changes)


@kernel(inline=True)
def _give_up(g: Any, last: int, changes: Any) -> None:
    """End an episode at ``last`` without an observation after it.

    If it terminated, or steps do not show what follows them, that changes nothing. Otherwise the
    step before it becomes the last one, with the observation of ``last`` as its successor. The
    reward of ``last`` is lost, since no value can be bootstrapped for it.
    """
    row = last % g[ROWS]
    if not there_at(g, last, row):
        return
    if g[FOLLOWED] == 0 or load(at_row(g, row) + FLAGS) & TERMINATED:
        _mature(g, last, changes)
        return
    deactivate(g, row, changes)
    before = load(at_row(g, row) + PREV)
    flag(g, last, row, FINAL)
    if before >= 0 and there(g, before):
        flag(g, before, before % g[ROWS], TRUNCATED)
        _pass(g, before % g[ROWS], changes)
        _mature(g, before, changes)


@kernel(inline=True, always=True)
def _settle(g: Any, name: int, row: int, stream: int, flags: int, changes: Any) -> None:
    """Link a row whose fields are written into its stream, and publish it."""
    address = at_row(g, row)
    mark = g[LAST] + 8 * stream
    linked = peek64(mark)  # see NOTE [next episodes]
    last = linked if linked >= 0 else -2 - linked
    before = row - (name - last) if name - row <= last < name else last % g[ROWS]
    if linked < 0:
        last = -1
    elif (
        flags & FINAL == 0 and there_at(g, last, before) and load(at_row(g, before) + FLAGS) & ENDS
    ):
        _give_up(g, last, changes)  # its final observation was announced and did not come
        linked, last = -2 - last, -1
    poke64(address + PREV, linked if flags & FINAL == 0 else last)
    poke64(address + NEXT, -1)
    poke64(address + FLAGS, flags)
    store(address + ID, name + 1)
    poke64(g[NAMES] + 8 * row, name)
    note(g, row)
    if there_at(g, last, before):
        store(at_row(g, before) + NEXT, name)
        note(g, before)
    elif last < 0 and flags & FINAL == 0 and there_at(g, -2 - linked, before):
        store(at_row(g, before) + NEXT, -2 - name)
        note(g, before)
    if flags & FINAL:
        if last >= 0:
            flag(g, last, before, flags & ENDS)
            _mature(g, last, changes)
            poke64(mark, -2 - name)
        return
    ripe, place = name, row
    for _ in range(g[LOOKAHEAD]):
        if ripe >= 0:
            ripe = load(at_row(g, place) + PREV) if there_at(g, ripe, place) else -1
            place = ripe % g[ROWS]
    if ripe >= 0:
        _activate(g, ripe, place, True, changes)
    poke64(mark, name)
    if flags & ENDS and flags & AWAITS == 0:
        _give_up(g, name, changes)
        poke64(mark, -2 - name)


@kernel(inline=True, always=True)
def _ends(g: Any, stream: int, flags: int, changes: Any) -> bool:
    """End a stream's episode after its last step. Return whether the observation after it is to be
    written.
    """
    mark = g[LAST] + 8 * stream
    last = peek64(mark)
    if last < 0:
        return False
    flag(g, last, last % g[ROWS], flags & ENDS)
    if flags & SHOWN and g[FOLLOWED]:
        return True
    _give_up(g, last, changes)
    poke64(mark, -2 - last)
    return False


@kernel(keeps_gil=True)
def write(
    g: Any,
    fields: Any,
    heads: int,
    apart: int,
    per: int,
    between: int,
    start: int,
    stop: int,
    free: int,
    ids: Any,
    changes: Any,
) -> None:
    """Write records ``start`` to ``stop`` into rows in order; or one into the row ``free``.

    ``fields [fields, 5]``: see field_table.py. ``heads``: the address of the first record's head,
    see row_format.py; the others lie ``apart`` bytes from each other. Records come in blocks of
    ``per``, each ``between`` bytes after the one before it. ``ids``: of their rows; -1 for a record
    that ends an episode and has no row. ``changes``: how many rows were noted in BORN and in DIED.
    No row is in DIED first and then in BORN, as long as fewer rows are written than there are spare
    ones.
    """
    block, k = start // per * between, start % per
    for i in range(start, stop):
        if k == per:
            block, k = block + between, 0
        head = heads + block + k * apart
        stream, flags = peek32(head), peek32(head + FLAGS_AT)
        name = -1
        if flags & FINAL == 0 or flags & ENDS == 0 or _ends(g, stream, flags, changes):
            name, row = _next_row(g, free, changes)
            put_row(fields, block, k, row)
            if g[GIVEN]:
                poke_float(g[GIVEN] + 8 * row, peek_float(head + PRIORITY_AT))
            if flags & FINAL:
                flags = FINAL
            elif g[TELLING]:
                flags = _told(g, row, flags)
            _settle(g, name, row, stream, flags, changes)
        ids[i] = name
        k += 1
