"""The episodes in the newest steps of a table: how long they are, and what they return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from async_loader.replay.array_types import Array, Bools, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.table.table import Table


class NewestEpisodes(NamedTuple):
    """The newest steps of a table, by episode.

    Attributes
    ----------
    ids : int64 array [steps]
        Of the steps, oldest first.
    order : int64 array [steps]
        Places in ``ids``, episode after episode.
    starts : int64 array [episodes and parts]
        Where each begins in ``order``.
    flags : int64 array [steps]
        Of ``ids``: those of row_format.py.
    whole : bool array [episodes and parts]
        It began and ended in these steps.
    sums : float64 array [episodes and parts] | None
        Of rewards; ``None`` for a table without a field ``reward`` of single numbers.
    """

    ids: Ids
    order: Ids
    starts: Ids
    flags: Ids
    whole: Bools
    sums: Floats | None

    @property
    def counts(self) -> Ids:
        """Return the steps of each episode or part."""
        return np.diff(np.append(self.starts, len(self.ids)))

    @property
    def lengths(self) -> Ids:
        """Return the steps of each whole episode."""
        return self.counts[self.whole]

    @property
    def returns(self) -> Floats | None:
        """Return the sum of each whole episode's rewards."""
        return None if self.sums is None else self.sums[self.whole]

    @property
    def parts(self) -> int:
        """Return the number of episodes whose first steps are older or gone, or that go on."""
        return int((~self.whole).sum())


def newest_episodes(table: Table, most: int, drawable: bool = False) -> NewestEpisodes:
    """Return the episodes in the newest ``most`` steps. Under the lock.

    Cost: some 0.2 us for each of these steps, whatever the table holds; where the remover takes
    steps out of order, 1 ns for each row of the table on top.

    ``drawable``: leave out steps that cannot be drawn yet.
    """
    heads, g = table.storage.heads(), table.g
    end = int(g[r.CURSOR]) if g[r.ORDERED] else int(table.ids.max(initial=-1)) + 1
    ids = np.arange(max(0, end - min(most, int(g[r.ROWS]))), end)
    if g[r.ORDERED]:
        ids = ids[ids >= end - table.window]
    some = heads[ids % len(heads)]
    flags, before = some[:, r.FLAGS // 8] % r.VERSION_ONE, some[:, r.PREV // 8]
    there = (some[:, r.ID // 8] == ids + 1) & (flags & (r.FINAL | r.DELETED) == 0)
    if drawable:
        there &= table.items.alive[ids % len(heads)] != 0
    ids, flags, before = ids[there], flags[there], before[there]
    first, root = _roots(heads, ids, flags, before)
    order = np.argsort(root, kind="stable")
    starts = np.flatnonzero(np.diff(root[order], prepend=-1))
    last = order[np.append(starts, len(ids))[1:] - 1]
    whole = first[root[order[starts]]] & (flags[last] & r.ENDS != 0)
    rewards = _rewards(table, ids[order])
    sums = None if rewards is None else episode_sums(rewards, starts)
    return NewestEpisodes(ids, order, starts, flags, whole, sums)


def _roots(heads: Ids, ids: Ids, flags: Ids, before: Ids) -> tuple[Bools, Ids]:
    """Return which steps are the first of their episode, and the place of the first step here of
    the episode of each.
    """
    at = np.minimum(np.searchsorted(ids, before), max(0, len(ids) - 1))
    here = (before >= 0) & (ids[at] == before)
    joined = here & (flags[at] & r.ENDS == 0)
    # of another episode if the row before is there, and the last of its own or behind that one
    row = heads[before % len(heads)]
    ended = row[:, r.FLAGS // 8] & (r.ENDS | r.FINAL) != 0
    ended &= row[:, r.ID // 8] == before + 1
    first = ~joined & (here | (before < 0) | ended)
    root = np.where(joined, at, np.arange(len(ids)))
    while not np.array_equal(further := root[root], root):
        root = further
    return first, root


def _rewards(table: Table, ids: Ids) -> Floats | None:
    storage = table.storage
    for i, field in enumerate(storage.layout.schema.fields):
        if field.name == "reward" and field.shape == () and field.dtype.kind in "biuf":
            values: Array = storage.cell(i)[ids % storage.layout.rows]
            return values.astype(np.float64)
    return None


def episode_sums(values: Floats, starts: Ids) -> Floats:
    """Return the sum of the values of each episode."""
    with np.errstate(over="ignore", invalid="ignore"):  # a sum may be infinite, or NaN
        sums: Floats = np.add.reduceat(values, starts) if len(starts) else values
    return sums
