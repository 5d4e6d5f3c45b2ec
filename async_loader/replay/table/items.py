"""Which rows of a table hold items, and the samplers that are told of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Bytes, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.samplers import Fifo, Items, Sampler, shortcut
from async_loader.replay.table.compressed_ring import CompressedRing
from async_loader.replay.table.rebuild import rebuild, tell_all
from async_loader.replay.table.sequence_sampler import InnerSampler
from async_loader.replay.table.step_packer import end_fields, ends_tell
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


class FreeRows:
    """Free rows, in the order in which they became free.

    A drawn item stays readable for as many removals as there are spare rows.

    Parameters
    ----------
    rows : int
    capacity : int
        Rows that hold an item at most; the others stay free.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._unused = 0  # rows from here on were never used: they come first, and need no list
        self._rows = rows
        self._free: deque[int] = deque()
        self._spare = rows - capacity

    def left(self) -> int:
        """Return how many rows can be taken without ending an item."""
        return max(0, self._rows - self._unused + len(self._free) - self._spare)

    def take(self) -> int:
        """Take the next row."""
        if self._unused < self._rows:
            self._unused += 1
            return self._unused - 1
        return self._free.popleft()

    def put(self, rows: Ids) -> None:
        """Add free rows."""
        self._free.extend(rows.tolist())

    def rebuild(self, ids: Ids, alive: Bytes) -> None:
        """Find the rows without an item: those that never held a step, then by the ids in them."""
        empty = np.flatnonzero(alive == 0)
        self._unused = self._rows
        self._free = deque(empty[np.argsort(ids[empty], kind="stable")].tolist())


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
        The limiter promises that every item is drawn: see streams.py, NOTE [queue tables].
    """

    def __init__(
        self,
        storage: Storage,
        samplers: Sequence[Sampler],
        remover: Sampler,
        seed: np.random.SeedSequence,
        max_times_sampled: int = 0,
        keeps: bool = False,
    ) -> None:
        from async_loader.replay import kernels  # late: see compiled.py

        self._k = kernels
        self.storage, self.keeps, self._most = storage, keeps, max_times_sampled
        self.kept: Any = None  # the file that holds it, a `KeptFile`
        layout = storage.layout
        rows = layout.rows
        self.items: Items = Items(rows, column=_column_of(storage))
        self.dirty = np.zeros(rows, np.uint8)
        self.ids = np.full(rows, -1, np.int64)
        self.last = np.full(_FIRST_STREAMS, -1, np.int64)
        self._born, self._died = (np.empty(2 * rows, np.int64) for _ in range(2))
        self.given: Floats = _NO_FLOATS
        # What the first of those that use priorities gave to items that came without one; a remover
        # takes the same.
        self.assigned: Floats = _NO_FLOATS
        self._passed = NO_ROWS
        self.times = np.zeros(rows if max_times_sampled else 0, np.int64)
        # See kernels: new items, ended items, two answers, rows of PASSED.
        self._changes = np.zeros(5, np.int64)
        # Whether a change has begun and not ended: see rebuild.py.
        self.unfinished = False
        self._held: dict[int, int] = {}
        self.streams: dict[Hashable, int] = {}  # see streams.py, NOTE [streams]
        # Whether sequences go on into a stream's next episode, and whether any are shown. See
        # streams.py, NOTE [streams].
        self.across = self.in_sequences = False
        self._none = np.full(256, np.nan)
        g = self.g = storage.geometry
        g[r.DEPTH], g[r.FOLLOWED] = depth_and_lookahead(layout.schema)
        self.schema_lookahead = int(g[r.FOLLOWED])
        g[r.TELLING] = ends_tell(layout.schema)
        places = (r.TERMINATED_FIELD, r.TRUNCATED_FIELD, r.DONE_FIELD)
        for place, i in zip(places, end_fields(layout.schema), strict=True):
            if i >= 0:
                (offset, stride), dtype = layout.places[i], layout.schema.fields[i].dtype
                yes = int.from_bytes(
                    np.ones((), dtype).tobytes()[:8], "little", signed=dtype.itemsize >= 8
                )
                g[place : place + 4] = storage.base + offset, stride, min(8, dtype.itemsize), yes
        self.remover = remover
        self.free = None if type(remover) is Fifo else FreeRows(rows, layout.capacity)
        g[r.ORDERED] = self.free is None
        self._told: list[Sampler] = []
        # To be detached: a finalizer adds to it, which cannot wait for the lock.
        self.leaving: deque[Sampler] = deque()
        self.prioritized: list[Sampler] = []  # those that use priorities
        self._update_by_id: Callable[..., Any] | None = None
        self._reads_fields: list[Callable[[Ids], None]] = []
        self._told_of_passed: list[Any] = []
        if self.free is not None:
            remover.bind(self.items, seed)
            self._tell(remover)
        for sampler in samplers:
            self._tell(sampler)
        self._begin()
        self.ring = CompressedRing(storage) if layout.ring[1] else None

    def _begin(self) -> None:
        """Hold nothing. Numbers of streams that writers elsewhere hold stay."""
        g, layout = self.g, self.storage.layout
        self.items.alive[:] = 0
        self.ids[:] = self.last[:] = -1
        self.given[:] = self.assigned[:] = np.nan
        self.times[:] = 0
        self.streams = {name: n for name, n in self.streams.items() if n in self._held}
        taken = set(self.streams.values())
        self._numbers = 1 + max(taken, default=-1)
        self._spare = [number for number in range(self._numbers) if number not in taken]
        self._stale: set[int] = set()  # open since before the table was loaded
        for place in (r.CURSOR, r.COUNT, r.TOP, r.TAIL):
            g[place] = 0
        g[r.LOOKAHEAD], g[r.CAPACITY] = self.schema_lookahead, layout.capacity
        if self.keeps and self.free is None:
            # The past, the newest step, and the observation after an end.
            beside = int(g[r.DEPTH] - 1 + 2 * g[r.FOLLOWED])
            # and rows of deleted items, which are free in their turn
            g[r.CAPACITY] += min(max(beside, layout.spare // 4), layout.spare - 2)
        self._burst = max(1, (layout.rows - self.window) // 2 - 1)
        self.inserted = self.sampled = self.deleted = 0
        # draws of items that left before they were drawn often enough; see LimiterState
        self.lost = 0
        self.cleared = 0  # items that were inserted before the last `clear`
        # samples of a limiter's account that the one before left: see LimiterState
        self.carried = 0
        self._point()

    def begin_again(self) -> None:
        """Hold nothing, and count ids from 0: no process can read a row from here on."""
        self.unfinished = True
        self.storage.heads()[:, r.ID // 8] = 0
        # a fence: before anything is written to the rows
        self._k.turn_version(self.g, NO_ROWS, True)
        self.storage.note_emptied()
        self._begin()
        for one in self._told:
            if isinstance(one, InnerSampler):
                one.forget()
        rebuild(self)

    @property
    def window(self) -> int:
        """Rows up to the newest that may hold items."""
        return int(self.g[r.CAPACITY])

    def _point(self) -> None:
        """Tell kernels where the arrays of this process are."""
        for place, array in (
            (r.ALIVE, self.items.alive),
            (r.DIRTY, self.dirty),
            (r.NAMES, self.ids),
            (r.LAST, self.last),
            (r.BORN, self._born),
            (r.DIED, self._died),
            (r.GIVEN, self.given),
            (r.PASSED, self._passed),
        ):
            self.g[place] = array.ctypes.data if len(array) else 0

    def _tell(self, sampler: Sampler) -> None:
        self._told.append(sampler)
        self._sort_told()

    def _sort_told(self) -> None:
        rows = self.storage.layout.rows
        self._told.sort(key=lambda one: one is self.remover)
        self.prioritized = [one for one in self._told if one.prioritized]
        alone = len(self.prioritized) == 1  # several have to be told one by one
        self._update_by_id = (
            shortcut(self.prioritized[0], "update_by_id", "update") if alone else None
        )

        changed = [getattr(one, "changed", None) for one in self._told]
        self._reads_fields = [one for one in changed if one is not None]
        self._told_of_passed = [one for one in self._told if hasattr(one, "passed")]
        if self._told_of_passed and not len(self._passed):
            # a row that is written, and the end of an episode, note few each
            self._passed = np.empty(6 * rows, np.int64)
        if self.prioritized and not len(self.given):
            self.given, self.assigned = (
                (np.full(rows, np.nan), np.full(rows, np.nan))
                if self.kept is None
                else self.kept.priorities()
            )
        self._point()

    def attach(self, sampler: Sampler) -> None:
        """Add a sampler, which is bound, and tell it of all items."""
        self.let_go()
        self.unfinished = True
        self._tell(sampler)
        tell_all(self, sampler)
        self.unfinished = False

    def detach(self, sampler: Sampler) -> None:
        """Remove a sampler. May be called again."""
        told = [one for one in self._told if one is not sampler]
        if len(told) == len(self._told):
            return
        self.unfinished = True
        self._told = told
        self._sort_told()
        self.unfinished = False

    def let_go(self) -> None:
        """Detach the samplers of sources that were dropped."""
        while self.leaving:
            self.detach(self.leaving[0])
            self.leaving.popleft()

    @property
    def samplers(self) -> list[Sampler]:
        """The samplers that are told of items, without the remover."""
        return [one for one in self._told if one is not self.remover]

    def __len__(self) -> int:
        return int(self.g[r.COUNT])

    def given_to(self, rows: Ids) -> Floats:
        if len(self.given):
            return np.abs(self.given[rows])
        return (
            self._none[: len(rows)] if len(rows) <= len(self._none) else np.full(len(rows), np.nan)
        )

    def settle(self) -> None:
        """Tell the samplers of the items that kernels have made and ended."""
        born, died, _, _, passed = self._changes.tolist()
        self.items.count, self.items.top = self.g[r.COUNT : r.TOP + 1].tolist()
        if born:
            rows = self._born[:born]
            if self._most:
                self.times[rows] = 0
            first = self.prioritized[0] if self.prioritized else None
            for one in self._told:
                follows = first not in (None, one) and one is self.remover
                priority = self.assigned[rows] if follows else self.given_to(rows)
                one.insert(rows, priority)
                if one is first:
                    self.assigned[rows] = priority
        if passed:
            for sampler in self._told_of_passed:
                sampler.passed(self._passed[:passed])
        if died:
            rows = self._died[:died]
            for one in self._told:
                one.remove(rows)
            if self.free is not None:
                self.free.put(rows)
            if self._most:
                self.lost += self._most * died - int(self.times[rows].sum())
        self._changes[:] = 0
        self.inserted += born
        self.deleted += died
        self.unfinished = False

    def find(self, ids: Ids, steps: bool = False) -> Ids:
        """Return the rows of ids, -1 for those that are gone; ``steps``: also of those that are
        items no more.
        """
        rows = np.empty(len(ids), np.int64)
        self._k.find(self.g, ids, rows, steps)
        return rows

    def remove(self, rows: Ids) -> None:
        """End the items of these rows."""
        self.unfinished = True
        self._k.remove(self.g, rows, self._changes)
        self.settle()

    def finish(self) -> None:
        """Rebuild what an interrupted call left half done, and write what was gathered."""
        raise NotImplementedError

    def end(self, numbers: Iterable[int], flags: int) -> None:
        """See `Table.end`."""
        raise NotImplementedError
