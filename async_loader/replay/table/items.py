"""Which rows of a table hold items, and the samplers that are told of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.samplers import Draw, Fifo, Items, Sampler, shortcut
from async_loader.replay.table.compressed_ring import CompressedRing
from async_loader.replay.table.free_rows import FreeRows
from async_loader.replay.table.step_packer import end_fields
from async_loader.replay.table.storage import Storage
from async_loader.replay.views import depth_and_lookahead

NO_ROWS: Ids = np.empty(0, np.int64)
_NO_FLOATS = np.empty(0)
_FIRST_STREAMS = 64


def _column_of(storage: Storage) -> Callable[[str], Array]:
    """Return `Storage.column`, which does not keep the memory: a sampler may be kept for longer."""
    of_this = weakref.ref(storage)

    def column(name: str) -> Array:
        there = of_this()
        assert there is not None
        return there.column(name)

    return column


class TableItems:
    """The lowest layer of a table: its items, and the samplers that are told of each.

    Parameters
    ----------
    storage : Storage
    samplers : sequence of Sampler
        Told of every item.
    remover : Sampler
        `Fifo` means that rows are overwritten in order; any other chooses the item that makes room.
    seed : SeedSequence
        For the remover.
    max_times_sampled : int
        Draws after which an item ends; 0: any number.
    keeps : bool
        The limiter promises that every item is drawn: see room.py, NOTE [queue tables].
    successor_of : Table, optional
        Whose rows and samplers this table takes over, with the streams that writers elsewhere know
        by number. It holds nothing then, and neither does this one.
    """

    def __init__(
        self,
        storage: Storage,
        samplers: Sequence[Sampler],
        remover: Sampler,
        seed: np.random.SeedSequence,
        max_times_sampled: int = 0,
        keeps: bool = False,
        successor_of: TableItems | None = None,
    ) -> None:
        from async_loader.replay import kernels  # late: see compiled.py

        self._k = kernels
        self.storage = storage
        layout = storage.layout
        self.items: Items = (
            Items(layout.rows, column=_column_of(storage))
            if successor_of is None
            else successor_of.items
        )
        self.dirty = np.zeros(layout.rows, np.uint8)
        self.given: Floats = _NO_FLOATS
        self.ids = np.full(layout.rows, -1, np.int64)
        self.last = np.full(_FIRST_STREAMS, -1, np.int64)
        self.streams: dict[Hashable, int] = {}  # see streams.py, NOTE [streams]
        self._numbers = 0
        self._spare: list[int] = []
        self._held: dict[int, int] = {}
        self._stale: set[int] = set()  # open since before the table was loaded
        # Whether sequences go on into a stream's next episode. See streams.py, NOTE [streams].
        self.across = False
        self._born = np.empty(2 * layout.rows, np.int64)
        self._died = np.empty(2 * layout.rows, np.int64)
        self._passed = NO_ROWS
        # See kernels: new items, ended items, an answer, ended items that are not deleted, rows of
        # PASSED.
        self._changes = np.zeros(5, np.int64)
        self._unsettled = self._changes.data
        self._patching: Ids | None = None
        self._none = np.full(256, np.nan)
        self.inserted = self.counted = self.deleted = 0
        self.cleared = 0  # items that were inserted before the last `clear`
        self.carried = (
            0  # samples of a limiter's account that the one before left: see LimiterState
        )
        # Draws of tables in which each item counts its draws; kernels count them.
        self._used = np.zeros(1, np.int64)
        # Draws that did not become samples: of items that left before, and of unreadable ones.
        self._lost = np.zeros(1, np.int64)
        self.undelivered: list[tuple[Draw, Ids]] = []
        self._parted = False
        self._most = max_times_sampled
        self.times = np.zeros(layout.rows if max_times_sampled else 0, np.int64)
        g = self.g = storage.geometry
        g[r.DEPTH], g[r.LOOKAHEAD] = depth_and_lookahead(layout.schema)
        g[r.FOLLOWED] = g[r.LOOKAHEAD]
        self.schema_lookahead = int(g[r.LOOKAHEAD])
        # The past, the newest step, and the observation after an end.
        beside = int(g[r.DEPTH] - 1 + 2 * g[r.FOLLOWED])
        self.keeps = keeps
        g[r.CAPACITY] = layout.capacity
        if keeps and type(remover) is Fifo:
            g[r.CAPACITY] += min(beside, layout.spare - 2)
        # Of a queue, less what its window may grow by: see room.py, NOTE [free before their turn].
        spare = layout.rows - self.window
        self._burst = max(1, (spare - (spare // 4 if keeps else 0)) // 2 - 1)
        private = (self.items.alive, self.dirty, self.ids)
        g[r.ALIVE], g[r.DIRTY], g[r.NAMES] = (a.ctypes.data for a in private)
        g[r.LAST], g[r.BORN], g[r.DIED] = (
            a.ctypes.data for a in (self.last, self._born, self._died)
        )
        places = (r.TERMINATED_FIELD, r.TRUNCATED_FIELD, r.DONE_FIELD)
        for place, i in zip(places, end_fields(layout.schema), strict=True):
            if i >= 0:
                (offset, stride), dtype = layout.places[i], layout.schema.fields[i].dtype
                yes = int.from_bytes(
                    np.ones((), dtype).tobytes()[:8], "little", signed=dtype.itemsize >= 8
                )
                g[place : place + 4] = storage.base + offset, stride, min(8, dtype.itemsize), yes
        self.remover = remover
        self.free = None if type(remover) is Fifo else FreeRows(layout.rows, layout.capacity)
        g[r.ORDERED] = self.free is None
        self._told: list[Sampler] = []
        # To be detached: a finalizer adds to it, which cannot wait for the lock.
        self.leaving: deque[Sampler] = deque()
        self.left_out_by: dict[str, int] = {}  # by detached samplers, see LagSampler
        self.prioritized: list[Sampler] = []  # those that use priorities
        self._update_by_id: Callable[..., Any] | None = None
        self._reads_fields: list[Callable[[Ids], None]] = []
        self._told_of_passed: list[Any] = []
        if self.free is not None:
            if successor_of is None:
                remover.bind(self.items, seed)
            self._tell(remover)
        for sampler in samplers:
            self._tell(sampler)
        if successor_of is not None:
            self._succeed(successor_of)
        self.ring = CompressedRing(storage) if layout.ring[1] else None

    def _succeed(self, before: TableItems) -> None:
        """Take over the samplers of sources, and the numbers of streams that
        other processes know.
        """
        self.leaving, self.across = before.leaving, before.across
        self.left_out_by = before.left_out_by
        for sampler in before.samplers:
            if not any(one is sampler for one in self._told):
                self._tell(sampler)
        self._held = before._held
        self.streams = {
            name: number for name, number in before.streams.items() if number in before._held
        }
        self._numbers = 1 + max(self.streams.values(), default=-1)
        self._spare = [
            number for number in range(self._numbers) if number not in self.streams.values()
        ]
        if self._numbers > len(self.last):
            self.last = np.full(len(before.last), -1, np.int64)
            self.g[r.LAST] = self.last.ctypes.data

    @property
    def window(self) -> int:
        """Rows up to the newest that may hold items."""
        return int(self.g[r.CAPACITY])

    def _tell(self, sampler: Sampler) -> None:
        self._told.append(sampler)
        self._sort_told()
        if sampler.prioritized and not len(self.given):
            self.given = np.full(self.storage.layout.rows, np.nan)
            self.g[r.GIVEN] = self.given.ctypes.data

    def _sort_told(self) -> None:
        self.prioritized = [one for one in self._told if one.prioritized]
        alone = len(self.prioritized) == 1  # several have to be told one by one
        self._update_by_id = (
            shortcut(self.prioritized[0], "update_by_id", "update") if alone else None
        )

        changed = [getattr(one, "changed", None) for one in self._told]
        self._reads_fields = [one for one in changed if one is not None]
        self._told_of_passed = [one for one in self._told if hasattr(one, "passed")]
        if self._told_of_passed and not len(self._passed):
            # a row that is written, and the end of an episode, note few each; see kernels.settle
            self._passed = np.empty(6 * self.storage.layout.rows, np.int64)
            self.g[r.PASSED] = self._passed.ctypes.data

    def attach(self, sampler: Sampler) -> None:
        """Add a sampler, which is bound, and tell it of all items."""
        self.let_go()
        self._tell(sampler)
        self.tell_all(sampler)

    def detach(self, sampler: Sampler) -> None:
        """Remove a sampler. May be called again."""
        told = [one for one in self._told if one is not sampler]
        if len(told) == len(self._told):
            return
        left_out = dict(self.left_out_by)
        for reason, count in getattr(sampler, "left_out_by", {}).items():
            left_out[reason] = left_out.get(reason, 0) + count
        self._told, self.left_out_by = told, left_out
        self._sort_told()

    def let_go(self) -> None:
        """Detach the samplers of sources that were dropped."""
        while self.leaving:
            self.detach(self.leaving[0])
            self.leaving.popleft()

    def tell_all(self, sampler: Sampler) -> None:
        """Tell a new sampler of all items."""
        there = self.in_order()
        sampler.insert(there, self._given(there))
        if hasattr(sampler, "passed"):
            sampler.passed(self.passed())

    def in_order(self) -> Ids:
        """Return the rows of all items, by their ids."""
        there = np.flatnonzero(self.items.alive)
        rows: Ids = there[np.argsort(self.ids[there], kind="stable")]
        return rows

    def passed(self) -> Ids:
        """Return the rows of deleted steps whose turn to become items has come, as `settle` tells
        of them.
        """
        heads, ids = self.storage.heads(), self.ids
        flags, after = heads[:, r.FLAGS // 8], heads[:, r.NEXT // 8]
        rows = np.flatnonzero((ids >= 0) & (flags & r.DELETED != 0) & (flags & r.FINAL == 0))
        last, ended = rows, np.zeros(len(rows), np.bool_)
        for _ in range(self.g[r.LOOKAHEAD]):
            follows = (after[last] >= 0) & (ids[after[last] % len(ids)] == after[last])
            ended |= (flags[last] & r.ENDS != 0) & (follows | (flags[last] & r.AWAITS == 0))
            rows, last, ended = (one[follows | ended] for one in (rows, last, ended))
            last = np.where(ended, last, after[last] % len(ids))
        in_order: Ids = rows[np.argsort(ids[rows], kind="stable")]
        return in_order

    @property
    def sampled(self) -> int:
        """Items drawn since the table was made."""
        return self.counted + int(self._used[0])

    @property
    def lost(self) -> int:
        """Draws of items that left before they were drawn often enough; see `LimiterState`."""
        return int(self._lost[0])

    @property
    def samplers(self) -> list[Sampler]:
        """The samplers that are told of items, without the remover."""
        return [one for one in self._told if one is not self.remover]

    def __len__(self) -> int:
        return int(self.g[r.COUNT])

    def _given(self, rows: Ids) -> Floats:
        if len(self.given):
            return self.given[rows]
        return (
            self._none[: len(rows)] if len(rows) <= len(self._none) else np.full(len(rows), np.nan)
        )

    def settle(self) -> None:
        """Tell the samplers of the items that kernels have made and ended.

        Ctrl-C may come before this call or within it: the changes stay until all samplers were
        told, and a sampler may be told twice.
        """
        born, died, _, waiting, passed = self._changes.tolist()
        self.items.count, self.items.top = self.g[r.COUNT : r.TOP + 1].tolist()
        if born:
            rows = self._born[:born]
            if self._most:
                self.times[rows] = 0
            for one in self._told:
                one.insert(rows, self._given(rows))
        if passed:
            for sampler in self._told_of_passed:
                sampler.passed(self._passed[:passed])
        if died:
            rows = self._died[:died]
            for one in self._told:
                one.remove(rows)
            if self.free is not None:
                self.free.put(rows)
        lost = 0
        if died and self._most:  # items that become items again begin with all their draws
            lost = self._most * (died - waiting) - int(self.times[self._died[:died]].sum())
        self._changes[:] = 0
        self.inserted += born - waiting
        self.deleted += died - waiting
        self._lost[0] += lost

    def find(self, ids: Ids) -> Ids:
        """Return the rows of ids, -1 for those that are gone."""
        rows = np.empty(len(ids), np.int64)
        self._k.find(self.g, ids, rows)
        return rows

    def names(self, rows: Ids) -> Ids:
        """Return the ids of rows."""
        names: Ids = self.ids[rows]
        return names

    def remove(self, rows: Ids) -> None:
        """End the items of these rows."""
        (self._k.forget if self._parted else self._k.remove)(self.g, rows, self._changes)
        self.settle()

    def finish(self) -> None:
        """Write what was gathered, and complete what an interrupted call has left."""
        raise NotImplementedError

    @property
    def uses_up(self) -> bool:
        """Whether each item ends after a number of draws."""
        return self._most > 0

    def part(self) -> None:
        """Detach from the parent, in a forked child: no change here reaches
        its counts or its rows.
        """
        self.g = self.storage.geometry = self.g.copy()
        self._parted = True
