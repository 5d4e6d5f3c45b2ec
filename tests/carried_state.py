"""Compares what a table and its samplers carry along with what follows from the rows.

Within `compared` each table that is made compares itself whenever its lock is released. `Drift`
names the first difference. Tables of more than `MOST_ROWS` rows are left out: it is O(rows).
"""

from __future__ import annotations

import _thread
import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from async_loader.replay.base import row_format as r
from async_loader.replay.samplers import Items, Sampler, Uniform
from async_loader.replay.table.rebuild import complete, tell_again
from async_loader.replay.table.sequence_sampler import InnerSampler, SequenceSampler
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_access import TableAccess

MOST_ROWS = 2048


class Drift(AssertionError):
    """What a table carries along is not what follows from its rows."""


class ComparingLock(_thread.RLock):  # type: ignore[misc]  # it is final for type checkers only
    """A lock that compares its table before it is released. See the module."""

    def __init__(self, table_of: Callable[[], Table | None]) -> None:
        super().__init__()
        self._table_of = table_of

    def release(self) -> None:
        try:
            table = self._table_of()
            if table is not None:
                compare(table)
        finally:
            super().release()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def compared(on: bool = True) -> Iterator[None]:
    """Have the tables that are made meanwhile in this process compare themselves, or not."""

    def new_lock(state: TableAccess) -> Any:
        if not on:
            return threading.Lock()
        of_this = weakref.ref(state)

        def table() -> Table | None:
            one = of_this()
            return None if one is None or one.foreign else one._table

        return ComparingLock(table)

    before = TableAccess._new_lock
    TableAccess._new_lock = new_lock  # type: ignore[method-assign]
    try:
        yield
    finally:
        TableAccess._new_lock = before  # type: ignore[method-assign]


def compare(table: Table) -> None:
    """Raise `Drift` at the first difference. Under the lock.

    A table in the middle of a change that was interrupted, and one that is being loaded, differ.
    """
    if table.unfinished or table.storage.loading or table.storage.layout.rows > MOST_ROWS:
        return
    kept, wanted = carried(table), from_rows(table)
    for name, value in kept.items():
        if value != wanted[name]:
            raise Drift(f"{name}: the table carries {value}, and its rows say {wanted[name]}")


def carried(table: Table) -> dict[str, Any]:
    """Return what a table and its samplers keep beside the rows, by name."""
    g, items = table.g, table.items
    found: dict[str, Any] = {
        "ids": table.ids.tolist(),
        "rows with items": np.flatnonzero(items.alive).tolist(),
        "items": (int(g[r.COUNT]), items.count, table.inserted - table.deleted),
        "open episodes": sorted(table.last[list(table.streams.values())].tolist()),
    }
    if table._most:
        found["draws left"] = table.inserted * table._most - table.sampled - table.lost
    if table.free is not None:
        found["free rows"] = len(table.free._free) + table.storage.layout.rows - table.free._unused
    for one in table._told:
        rows = _listed(one.sampler if isinstance(one, InnerSampler) else one)
        if rows is not None:
            found[f"rows of {_named(one)}"] = sorted(rows)
        if isinstance(one, SequenceSampler):
            found[f"sequences of {_named(one)}"] = np.flatnonzero(one.own_items.alive).tolist()
    return found


def from_rows(table: Table) -> dict[str, Any]:
    """Work out what `carried` returns from the rows."""
    g, heads = table.g, table.storage.heads()
    ids, flags = heads[:, r.ID // 8] - 1, heads[:, r.FLAGS // 8] % r.VERSION_ONE
    here = (ids >= 0) & (ids >= g[r.CURSOR] - table.window if g[r.ORDERED] else True)
    steps = np.flatnonzero(here & (flags & (r.FINAL | r.DELETED) == 0))
    alive = complete(table, steps, int(g[r.LOOKAHEAD])).tolist()
    count = len(alive)
    found: dict[str, Any] = {
        "ids": ids.tolist(),
        "rows with items": alive,
        "items": (count, count, count),
        "open episodes": _last_rows(table, steps),
        "draws left": int((table._most - table.times[alive]).sum()) if table._most else 0,
        "free rows": len(ids) - count,
    }
    for one in table._told:
        rows = alive
        if isinstance(one, SequenceSampler):
            found[f"sequences of {_named(one)}"] = _starts(table, one)
        if isinstance(one, InnerSampler):
            rows = np.flatnonzero(one.own_items.alive).tolist()
        found[f"rows of {_named(one)}"] = rows
    return found


def _last_rows(table: Table, steps: Any) -> list[int]:
    """Return what LAST should hold for each stream; of an episode that has ended, and of one whose
    last step was deleted, what it holds.
    """
    last = table.last[list(table.streams.values())].tolist()
    heads, ids = table.storage.heads(), table.ids
    flags = heads[:, r.FLAGS // 8]
    ended = flags & (r.FINAL | r.ENDS) != 0
    ended &= flags & (r.AWAITS | r.FINAL) != r.AWAITS
    go_on = steps[~ended[steps] & (heads[steps, r.NEXT // 8] == -1)]
    opened = set(ids[go_on].tolist()) if table.g[r.ORDERED] else set()
    for name in last:
        if name in opened:
            opened.remove(name)
        elif name >= 0 and ids[name % len(ids)] == name and ended[name % len(ids)]:
            raise Drift(f"step {name} has ended its episode, which a stream goes on with")
    return sorted([*last, *opened])


def _listed(chooser: Any) -> list[int] | None:
    """Return the rows that a sampler of the package knows, ``None`` if it lists none."""
    if not type(chooser).__module__.startswith("async_loader."):
        return None
    parts = vars(chooser)
    if "_heap" in parts:
        rows: Any = chooser._order
    elif "_tree" in parts:
        rows = chooser._order()
    elif "_place" in parts:
        rows = np.flatnonzero(np.array(chooser._place) >= 0)
    elif "_before" in parts:
        rows = np.flatnonzero(chooser._before != chooser._k.FREE)
    elif "_masses" in parts and chooser.eps > 0:
        rows = np.flatnonzero(chooser._masses.leaves)
    elif parts.get("_listed") is not None:
        rows = chooser._listed[chooser._items.alive[chooser._listed] != 0]
    else:
        return None
    found: list[int] = rows.tolist()
    return found


def _starts(table: Table, sampler: SequenceSampler) -> list[int]:
    """Return the rows at which sequences begin: those that a sampler finds that is told anew."""
    again = copy.copy(sampler)
    again.own_items = Items(sampler.own_items.rows)
    again.sampler = Uniform()
    again.sampler.bind(again.own_items, np.random.SeedSequence(0))
    for name in ("_seen", "_position"):
        setattr(again, name, getattr(sampler, name).copy())
    tell_again(table, again)
    return np.flatnonzero(again.own_items.alive).tolist()


def _named(sampler: Sampler) -> str:
    view = getattr(sampler, "view", None)
    return f"{sampler!r} at {id(sampler):x}" + (f" for {view}" if view is not None else "")
