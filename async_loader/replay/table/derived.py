"""Compares what a table and its samplers carry along with what follows from the rows.

For tests: with ``ASYNC_LOADER_COMPARE=1`` in the environment, each table that is made compares
itself whenever its lock is released, here and in the processes that are started. `Drift` names the
first difference. `carried` reads what is kept, `from_rows` works the same out from the rows alone,
in O(rows) and in Python, so that tables of more than `MOST_ROWS` rows are left out.
"""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base import sequence_table as q
from async_loader.replay.samplers import Items, Sampler
from async_loader.replay.table.inner_sampler import InnerSampler
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.table import Table

MOST_ROWS = 2048
_positions: weakref.WeakKeyDictionary[SequenceSampler, dict[int, int]] = weakref.WeakKeyDictionary()
"""Where steps are in their episodes, by id: the rows do not say it when the first ones are gone."""


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


def compare(table: Table) -> None:
    """Raise `Drift` at the first difference. Under the lock.

    A table in the middle of a change that was interrupted, and one that is being loaded, differ.
    """
    unsettled = table._changes.any() or table._patching is not None
    if unsettled or table.storage.loading or table.storage.layout.rows > MOST_ROWS:
        return
    kept, wanted = carried(table), from_rows(table)
    for name, value in kept.items():
        same = value == wanted[name]
        if not (same if isinstance(same, bool) else bool(np.all(same))):
            raise Drift(f"{name}: the table carries {value}, and its rows say {wanted[name]}")


def carried(table: Table) -> dict[str, Any]:
    """Return what a table and its samplers keep beside the rows, by name."""
    g, items = table.g, table.items
    found: dict[str, Any] = {
        "ids": table.ids.tolist(),
        "items": (int(g[r.COUNT]), items.count, table.inserted - table.deleted),
        "steps that wait": int(g[r.WAITING]),
        "open episodes": sorted(table.last[list(table.streams.values())].tolist()),
        "stream numbers": len(table.streams) + len(table._spare),
    }
    if table.ring is not None:
        found["items whose compressed values are gone"] = 0
    if table._most:
        found["draws left"] = table.inserted * table._most - table.sampled - table.lost
    if table.free is not None:
        found["free rows"] = len(table.free._free) + table.storage.layout.rows - table.free._unused
    if table.keeps:
        found["queue places that are lent"] = True
    for one in table._told:
        found |= _of_sampler(one)
    return found


def from_rows(table: Table) -> dict[str, Any]:
    """Work out what `carried` returns from the rows."""
    g, heads, alive = table.g, table.storage.heads(), table.items.alive != 0
    ids, flags = heads[:, r.ID // 8] - 1, heads[:, r.FLAGS // 8] % r.VERSION_ONE
    rows = len(ids)
    here = (ids >= 0) & (ids >= g[r.CURSOR] - table.window if g[r.ORDERED] else True)
    steps = here & (flags & (r.FINAL | r.DELETED) == 0)
    if not (alive <= steps).all():
        raise Drift(f"items in rows {np.flatnonzero(alive & ~steps)}, which hold no step")
    count, last = int(alive.sum()), _last_rows(table, ids, flags, steps)
    found: dict[str, Any] = {
        "ids": ids.tolist(),
        "items": (count, count, count),
        "steps that wait": int((steps & ~alive).sum()),
        "open episodes": last,
        "stream numbers": table._numbers,
        "draws left": int((table._most - table.times[alive]).sum()) if table._most else 0,
        "free rows": rows - count,
        "items whose compressed values are gone": _unreadable(table, alive),
        "queue places that are lent": _lent_as_said(table),
    }
    for one in table._told:
        found |= _sampler_from_rows(table, one, ids, flags)
    return found


def _last_rows(table: Table, ids: Ids, flags: Ids, steps: Any) -> list[int]:
    """Return what LAST should hold for each stream; of an episode that has ended, and of one whose
    last step was deleted, what it holds.
    """
    last = table.last[list(table.streams.values())].tolist()
    heads = table.storage.heads()
    ended = flags & (r.FINAL | r.ENDS) != 0
    ended &= flags & (r.AWAITS | r.FINAL) != r.AWAITS
    go_on = steps & ~ended & (heads[:, r.NEXT // 8] == -1)
    opened = set(ids[go_on].tolist()) if table.g[r.ORDERED] else set()
    for name in last:
        if name in opened:
            opened.remove(name)
        elif name >= 0 and ids[name % len(ids)] == name and ended[name % len(ids)]:
            raise Drift(f"step {name} has ended its episode, which a stream goes on with")
    return sorted([*last, *opened])


def _unreadable(table: Table, alive: Any) -> int:
    if table.ring is None:
        return 0
    fields = enumerate(table.storage.layout.schema.fields)
    begins = [table.storage.cell(i)[alive][:, 0] for i, field in fields if field.codec]
    return int((np.min(begins, axis=0, initial=np.iinfo(np.int64).max) < table.ring.floor).sum())


def _lent_as_said(table: Table) -> bool:
    """Return whether the rows that are lent are there, and no more than may be."""
    g, layout = table.g, table.storage.layout
    own = int(g[r.CAPACITY] - g[r.LENT])
    return layout.capacity <= own and 0 <= g[r.LENT] <= max(0, layout.rows - own) // 4


# -- samplers --------------------------------------------------------------------------------------


def _items_of(table: Table, sampler: Sampler) -> tuple[Any, Items]:
    """Return what chooses in the end, and its items."""
    if isinstance(sampler, InnerSampler):
        return sampler.sampler, sampler.own_items
    return sampler, table.items


def _listed(chooser: Any) -> dict[str, Any]:
    """Return the rows that a sampler of the package lists in its state."""
    if not type(chooser).__module__.startswith("async_loader."):
        return {}
    state = chooser.state()
    found: dict[str, Any] = {
        kind: sorted(state[kind].tolist()) for kind in ("order", "heap") if kind in state
    }
    if "values" in state:
        found["values"] = sorted(state["rows"].tolist())
    if "mass" in state and chooser.eps > 0:
        found["mass"] = np.flatnonzero(state["mass"]).tolist()
    if "list" in state and len(state["list"]):
        found["list"] = sorted(set(state["list"].tolist()) & _alive(chooser._items))
        found["listed twice"] = len(state["list"])
    return found


def _alive(items: Items) -> set[int]:
    return set(np.flatnonzero(items.alive).tolist())


def _of_sampler(sampler: Sampler) -> dict[str, Any]:
    name, chooser = _named(sampler), getattr(sampler, "sampler", sampler)
    found = {f"{kind} of {name}": rows for kind, rows in _listed(chooser).items()}
    if isinstance(sampler, InnerSampler):
        found[f"items of {name}"] = sampler.own_items.count
    if isinstance(sampler, SequenceSampler):
        found[f"sequences of {name}"] = sorted(_alive(sampler.own_items))
    return found


def _sampler_from_rows(table: Table, sampler: Sampler, ids: Ids, flags: Ids) -> dict[str, Any]:
    name, (chooser, items) = _named(sampler), _items_of(table, sampler)
    alive = sorted(_alive(items))
    found: dict[str, Any] = {f"{kind} of {name}": alive for kind in _listed(chooser)}
    if f"listed twice of {name}" in found:
        found[f"listed twice of {name}"] = len(set(chooser.state()["list"].tolist()))
    found[f"items of {name}"] = len(alive)
    if isinstance(sampler, SequenceSampler):
        found[f"sequences of {name}"] = _starts(table, sampler, ids, flags)
    return found


def _named(sampler: Sampler) -> str:
    view = getattr(sampler, "view", None)
    return f"{sampler!r} at {id(sampler):x}" + (f" for {view}" if view is not None else "")


# -- sequences -------------------------------------------------------------------------------------


class _Steps:
    """The steps of a table as sequences follow each other through them."""

    def __init__(self, table: Table, ids: Ids, flags: Ids, across: bool) -> None:
        heads = table.storage.heads()
        self.row = {name: row for row, name in enumerate(ids.tolist()) if name >= 0}
        self.flags = flags.tolist()
        self.next, self.prev = heads[:, r.NEXT // 8].tolist(), heads[:, r.PREV // 8].tolist()
        self.alive, self.ahead = table.items.alive, int(table.g[r.LOOKAHEAD])
        self.across = across

    def linked(self, links: list[int], name: int) -> int:
        """Return the step that a step links to, -1 without one; it may be gone."""
        name = links[self.row[name]]
        if not self.across:
            return name
        name = -2 - name if name < -1 else name
        while name in self.row and self.flags[self.row[name]] & r.FINAL:
            name = links[self.row[name]]
            name = -2 - name if name < -1 else name
        return name

    def ends(self, name: int) -> bool:
        return bool(self.flags[self.row[name]] & r.ENDS)

    def final(self, name: int) -> bool:
        return bool(self.flags[self.row[name]] & r.FINAL)

    def complete(self, name: int) -> bool:
        """Return whether a step is an item, or would be one if it had not been deleted."""
        row = self.row[name]
        if self.alive[row]:
            return True
        if not self.flags[row] & r.DELETED:
            return False
        for _ in range(self.ahead):
            after = self.next[self.row[name]]
            if self.ends(name) and (after >= 0 or not self.flags[self.row[name]] & r.AWAITS):
                return True
            if after not in self.row:
                return False
            name = after
        return True


def _starts(table: Table, sampler: SequenceSampler, ids: Ids, flags: Ids) -> list[int]:
    """Return the rows at which sequences begin."""
    shape = sampler._shape.tolist()
    steps = _Steps(table, ids, flags, bool(shape[q.GOES_ON]))
    position = _counted(sampler, steps)
    found = []
    for name, row in steps.row.items():
        if steps.alive[row] and _begins(steps, name, shape, position):
            found.append(row)
    return sorted(found)


def _counted(sampler: SequenceSampler, steps: _Steps) -> dict[int, int]:
    """Return the positions of steps: by their links, or as they were counted before."""
    known = _positions.setdefault(sampler, {})
    now: dict[int, int] = {}
    for name in sorted(steps.row):
        before, row = steps.linked(steps.prev, name), steps.row[name]
        if name in known:
            now[name] = known[name]
        elif before in now:
            now[name] = now[before] + 1
        elif before in known:
            now[name] = known[before] + 1
        elif sampler._seen[row] == name:
            now[name] = int(sampler._position[row])
    _positions[sampler] = {
        name: place for name, place in now.items() if sampler._seen[steps.row[name]] == name
    }
    return now


def _begins(steps: _Steps, first: int, shape: list[int], position: dict[int, int]) -> bool:
    """Return whether a sequence that is complete begins at a step."""
    if shape[q.EPISODES]:
        if steps.prev[steps.row[first]] >= 0:
            return False
    elif position.get(first, 1) % shape[q.STRIDE]:
        return False
    most = shape[q.EPISODES] or shape[q.SPAN]
    name, count = first, 1
    while count < most and not (steps.ends(name) and not steps.across):
        after = steps.linked(steps.next, name)
        if after not in steps.row or steps.final(after):
            break
        name, count = after, count + 1
    if shape[q.EPISODES]:
        return steps.ends(name) and steps.complete(name)
    if count < most:
        ended = steps.ends(name) and not steps.across and count >= shape[q.SHORTEST]
        return ended and steps.complete(name)
    return steps.complete(name)
