"""Derives what a table carries beside its rows: after an interrupted call, a load, for a view that
is asked for later.

# NOTE [interrupted calls]
An exception, as of Ctrl-C, may end a call between any two kernels, but not within one, and each
leaves rows, links and items as they should be. So `unfinished` is set before the first kernel of a
change and taken back when samplers and counts have followed; the next call that finds it set has
both derived anew from the rows. Whether the call had its effect is not said.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.sequence_sampler import SequenceSampler

Items: TypeAlias = Any
"""A `TableItems`, whose file uses this one."""


def complete(table: Items, rows: Ids, ahead: int) -> Ids:
    """Return those of the rows of steps that have ``ahead`` successors, or all that will come."""
    heads, ids = table.storage.heads(), table.ids
    flags, after = heads[:, r.FLAGS // 8], heads[:, r.NEXT // 8]
    last, ended = rows, np.zeros(len(rows), np.bool_)
    for _ in range(ahead):
        follows = (after[last] >= 0) & (ids[after[last] % len(ids)] == after[last])
        ended |= (flags[last] & r.ENDS != 0) & (follows | (flags[last] & r.AWAITS == 0))
        rows, last, ended = (one[follows | ended] for one in (rows, last, ended))
        last = np.where(ended, last, after[last] % len(ids))
    return rows


def oldest_shown(table: Items, ids: Ids, rows: Ids) -> Ids:
    """Return the oldest ids that the items of these rows show."""
    heads, oldest = table.storage.heads(), ids[rows].copy()
    for _ in range(table.g[r.DEPTH] - 1):
        at = oldest % len(ids)
        before = np.where(ids[at] == oldest, heads[at, r.PREV // 8], -1)
        oldest = np.where(before >= 0, before, oldest)
    return oldest


def derive(table: Items) -> None:
    """Find out from rows that were put in place which of them hold items."""
    g, items, ids, heads = table.g, table.items, table.ids, table.storage.heads()
    ids[:] = heads[:, r.ID // 8] - 1
    flags = heads[:, r.FLAGS // 8]
    used = np.flatnonzero(ids >= 0)
    steps = used[flags[used] & (r.FINAL | r.DELETED) == 0]
    items.alive[:] = 0
    items.alive[complete(table, steps, int(g[r.LOOKAHEAD]))] = 1
    if table.free is None:
        # those that show a step which the table would not hold any more had it been written to
        oldest = oldest_shown(table, ids, used)
        limit = int(g[r.CURSOR]) - table.window
        # a step that waits for its successors is told when these are there
        waits = (ids[used] >= limit) & (items.alive[used] == 0)
        gone = used[(oldest < limit) & ~waits]
        flags[gone] |= r.DELETED
        items.alive[gone] = 0
    g[r.COUNT] = np.count_nonzero(items.alive)
    g[r.TOP] = used[-1] + 1 if len(used) else 0


def rebuild(table: Items) -> None:
    """Derive counts, free rows, and what samplers know of items from the rows."""
    table.unfinished = True
    table._sort_told()
    g, k, items, changes, most = table.g, table._k, table.items, table._changes, table._most
    heads = table.storage.heads()
    if table.ring is not None:
        cursor = int(g[r.CURSOR])
        table.ring.derive(table.ids)
        k.retire_steps(g, max(0, cursor - len(heads)), table.ring.tail, changes)
    if most:
        table.times[table._born[: changes[0]]] = 0
        worn = np.flatnonzero((items.alive != 0) & (table.times >= most))
        k.remove(g, worn, np.zeros_like(changes))
    if len(table.assigned):
        table.assigned[table._born[: changes[0]]] = np.nan
    changes[:] = 0
    odd = np.flatnonzero(heads[:, r.FLAGS // 8] & r.VERSION_ONE)
    if len(odd):  # rows that were being patched
        k.turn_version(g, odd, False)
    items.count, items.top = g[r.COUNT : r.TOP + 1].tolist()
    table.deleted = table.inserted - items.count
    if most:
        left = int((most - table.times[items.alive != 0]).sum())
        table.lost = table.inserted * most - table.sampled - left
    if table.free is not None:
        table.free.rebuild(table.ids, items.alive)
    for one in table._told:
        tell_again(table, one)
    table.unfinished = False


def look_ahead(table: Items, steps: int) -> None:
    """Have items keep ``steps`` successors: those at open ends wait for theirs, and are none."""
    before = len(table)
    table.unfinished = True
    table.g[r.LOOKAHEAD] = steps
    if table.g[r.TOP]:  # samplers may be bound to nothing yet
        derive(table)
        table.inserted -= before - len(table)
        rebuild(table)
    table.unfinished = False


def in_order(table: Items) -> Ids:
    """Return the rows of all items, by their ids."""
    there = np.flatnonzero(table.items.alive)
    rows: Ids = there[np.argsort(table.ids[there], kind="stable")]
    return rows


def tell_all(table: Items, sampler: Sampler) -> None:
    """Tell a new sampler of all items."""
    there = in_order(table)
    priority = table.given_to(there)
    if sampler.prioritized:
        priority = np.where(np.isnan(priority), table.assigned[there], priority)
    told = None
    if sampler.prioritized and isinstance(sampler, SequenceSampler):
        told = sampler.assigned[there]
    sampler.insert(there, priority)
    if hasattr(sampler, "passed"):  # deleted steps whose turn to become items has come
        flags = table.storage.heads()[:, r.FLAGS // 8]
        deleted = (table.ids >= 0) & (flags & (r.DELETED | r.FINAL) == r.DELETED)
        rows = complete(table, np.flatnonzero(deleted), int(table.g[r.LOOKAHEAD]))
        sampler.passed(rows[np.argsort(table.ids[rows], kind="stable")])
    if sampler.prioritized:
        # sequences that are new to their sampler have these from their first step
        later = np.signbit(table.given[there])
        if told is not None:
            later &= np.isnan(told)
        if later.any():
            sampler.update(there[later], priority[later])


def tell_again(table: Items, sampler: Sampler) -> None:
    """Have a sampler forget all items, and tell it of those that there are."""
    reset = getattr(sampler, "reset", None)
    if reset is None:
        sampler.remove(np.arange(table.storage.layout.rows))
    else:
        reset()
    tell_all(table, sampler)
