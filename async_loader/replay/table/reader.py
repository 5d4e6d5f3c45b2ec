"""Reads a table's rows, in any process, without a lock. A torn row is never delivered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken
from async_loader.lifecycle import Deadline
from async_loader.replay.array_types import Array, Ids, Weights
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    FRAMES,
    NBYTES,
    NO_GOALS,
    READING,
    TIMES,
    UNIT,
    address_of,
)
from async_loader.replay.base.row_format import DELETED, FINAL, FLAGS, ID
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Reading
from async_loader.replay.samplers.binding import RandomNumbers
from async_loader.replay.table.batch_arrays import BatchArrays, Target, split_index
from async_loader.replay.table.compressed_ring import CompressedValues
from async_loader.replay.table.goal_reader import GoalReader
from async_loader.replay.table.storage import Storage, stored_fields
from async_loader.schema import Schema, samples_of
from async_loader.shm.array_pool import ArrayPool
from async_loader.shm.segment import check_fits
from async_loader.source import Seed, Window

# Up to here copying takes some hundred microseconds at most, and keeps the GIL. See
# compiled.kernel.
_SHORT_BYTES = 1 << 20
_STEP_BYTES = 88  # of an item's step, in the scratch memory
_MANY = 1 << 20  # steps from which on that memory is checked first
_ROUNDS = 64
_LOADING_S = 30.0
"""How long a reader waits while a save is loaded into the table."""
_LOOK_S = 1e-3


class ReplayReader:
    """Fills batches with items by id.

    Pickles while a process is being spawned, and may be inherited by a fork.

    An item that was overwritten since it was planned is replaced by another of the same part of the
    batch, drawn with the seed of that part, so that each item appears as often as the sampler
    wanted. If no other is left, any step of the table replaces it. ``index`` holds the ids that
    were delivered. See kernels, NOTE [row lock].

    Where a view has hindsight goals, an index has one more column, the bits of a float64 in [0, 1)
    that chooses the goal of each item. So goals do not depend on how a batch is divided between
    workers.

    Thread rule: one thread at a time. Cost: about 15 us for 256 rows of 200 bytes out of a million,
    180 us for 4096.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
    numbers : RandomNumbers, optional
        Of hindsight goals, for `take` and `fill`, where there is no index.

    Attributes
    ----------
    row_bytes : int
        What an item takes in a batch, with its id.

    Raises
    ------
    OutOfMemory
        For items so long that their steps cannot be listed.
    """

    def __init__(
        self, storage: Storage, read_plan: ReadPlan, numbers: RandomNumbers | None = None
    ) -> None:
        from async_loader.replay import kernels  # late: see compiled.py

        if read_plan.span > _MANY:
            check_fits(_STEP_BYTES * read_plan.span, f"items of {read_plan.span:,} steps")
        self._kernels = kernels
        self._storage = storage
        self.read_plan = read_plan
        self._template, self._table = self._fields(), read_plan.table()
        self._index = len(read_plan.outputs)
        # a read that may wait for a disk releases the GIL
        self._short = 0 if storage.on_disk else _SHORT_BYTES // max(1, read_plan.schema.nbytes)
        self.row_bytes = read_plan.schema.nbytes + 8
        self._plans: dict[int, BatchArrays] = {}
        self._blocks = ArrayPool()
        self._values = CompressedValues(storage, read_plan) if storage.layout.ring[1] else None
        self._goals = None if read_plan.goals is None else GoalReader(storage, read_plan, numbers)

    @property
    def schema(self) -> Schema:
        """The schema of a batch's row: ``index`` (int64), and ``weight`` (float32) if there are
        weights, come last.
        """
        return self.read_plan.schema

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """Fill ``into`` with the items of ``index``: int64 ids, or ``[rows, 2]`` with the bits of a
        float64 weight beside each.

        Raises
        ------
        Broken
            If no step could be read before it was overwritten, again and again.
        """
        if not len(index):
            return
        if self._goals is not None:
            # for items that replace others
            self._goals.numbers = RandomNumbers(np.random.SeedSequence(seed))
            self._goals.chances = np.ascontiguousarray(index[:, -1]).view(np.float64)
            index = index[:, :-1] if self.read_plan.weighted else index[:, 0]
        ids, weight = split_index(index)
        ids = np.array(ids, np.int64)
        gone = self.fill(ids, into, weight)
        if len(gone):
            self.replace(ids, gone, into, np.random.default_rng(seed))

    def announce(self, ids: Ids) -> None:
        """Have the rows of a batch brought in, if they are on a disk: all pages at once, where
        reading would ask for one after the other. Waits for none of them.

        The steps that an item shows beside its own are taken to lie in the rows around it, as those
        of a single stream do. Where streams are mixed, other rows are brought in, and reading waits
        for some.
        """
        storage, layout = self._storage, self._storage.layout
        if not storage.on_disk:
            return
        sources = {one.source for one in self.read_plan.outputs}
        places = {(0, layout.stride), *(layout.places[i] for i in sources if i >= 0)}
        rows = ids % layout.rows
        first = np.maximum(rows - self.read_plan.depth + 1, 0)
        end = np.minimum(rows + self.read_plan.span + 1, layout.rows)
        for offset, stride in places:
            if not offset or stride != layout.stride:  # small fields are in the packed rows
                storage.bring_in(offset + first * stride, offset + end * stride)

    def warm(self) -> ReplayReader:
        """Compile or load its kernels here, so that worker processes that get a copy need not."""
        self.fill(np.empty(0, np.int64), self.fresh(0))
        return self

    def fetch(self, index: Ids, seed: Seed) -> Sequence[Any]:
        """Return the items of ``index`` as a list of samples."""
        into = self.fresh(len(index))
        self.read(index, into, seed)
        return samples_of(self.schema, into.fields)

    def fresh(self, count: int) -> Window:
        """Return new uninitialised arrays ``[count, *shape]``, one for each field.

        Small fields share a record, each large one has a block.
        """
        plan = self._plan(count)
        small, large, blocks = iter(plan.fresh()), plan.large, self._blocks
        fields = range(len(self.schema.fields))
        return Window([blocks.array(*large[i]) if i in large else next(small) for i in fields])

    def _plan(self, count: int) -> BatchArrays:
        plan = self._plans.get(count)
        if plan is None:
            if len(self._plans) >= 16:
                self._plans.clear()
            plan = BatchArrays(self.schema, count, self._template[: self._index])
            self._plans[count] = plan
        return plan

    def layout(self, count: int) -> BatchLayout | None:
        """How the arrays of `drawn` and `these` lie in the block that they share, which is the
        ``base`` of each.
        """
        return self._plan(count).layout

    def take(self, ids: Ids, weight: Weights | None = None) -> tuple[Window, Ids]:
        """As `fill`, into new arrays."""
        into = self.fresh(len(ids))
        return into, self.fill(ids, into, weight)

    def target(self, arrays: Sequence[Array]) -> Target:
        """Wrap the caller's arrays ``[count, *shape]``, one for each field, in C order, as a target
        for batches.
        """
        fields, at = self._template[: self._index].copy(), self._index
        fields[:, ARRAY_ADDRESS] = [
            address_of(array) - address_of(arrays[at]) for array in arrays[:at]
        ]
        fields[:, ARRAY_STRIDE] = [array.strides[0] for array in arrays[:at]]
        return Target(list(arrays), fields, np.empty(len(arrays[at]), np.int64))

    def drawn(
        self, count: int, draw_into: Callable[[Reading], bool], into: Target | None = None
    ) -> Sequence[Array] | None:
        """Draw and read items in one kernel, into new arrays or a target.

        Under the table's lock, for items of small fields.

        Returns ``None`` if the sampler cannot. See samplers, NOTE [shortcuts]. Cost: about 18 us
        for 256 uniform ones of 200 bytes out of a million, of which reading takes 11.
        """
        plan = into or self._plan(count)
        arrays, at = plan.fresh(), self._index
        weight = arrays[at + 1] if self.read_plan.weighted else None
        there = draw_into(
            Reading(self._storage.geometry, plan.fields, self._table, plan.rows, arrays[at], weight)
        )
        return arrays if there else None

    def these(
        self, rows: Ids, weight: Weights | None, into: Target | None = None
    ) -> Sequence[Array] | None:
        """Read the items in ``rows``, as `drawn`. Returns ``None`` if one could not be read."""
        plan = into or self._plan(len(rows))
        small = plan.fresh()
        index = small[self._index]
        if self._run(self._kernels.read, rows, index, plan.fields, address_of(index), _NONE):
            return None
        self._weigh(small, weight)
        return small

    def at_once(self, count: int) -> bool:
        """Return whether `drawn` and `these` apply: to short batches of small fields.

        Sequences are long, goals call functions, and values are decompressed without the lock.
        """
        if count > self._short or self.read_plan.sequence is not None:  # never on a disk
            return False
        if self._goals is not None or self._values is not None:
            return False
        return not self._plan(count).large

    def fill(self, ids: Ids, into: Window, weight: Weights | None = None) -> Ids:
        """Read the items that are there.

        Return the positions of the others, whose rows hold any bytes.
        """
        arrays: Sequence[Array] = into.fields[: self._index]
        into.fields[self._index][...] = ids
        self._weigh(into.fields, weight)
        hidden = [
            np.empty((len(ids), *one.field.shape), one.field.dtype) for one in self.read_plan.hidden
        ]
        read = arrays if self._values is None else self._values.locators(arrays)
        fields = self._template
        fields[:, ARRAY_ADDRESS] = [address_of(array) for array in (*read, *hidden)]
        fields[:, ARRAY_STRIDE] = [array.strides[0] for array in (*read, *hidden)]
        taken = np.empty(len(ids), np.int64)
        run = self._kernels.read if len(ids) <= self._short else self._kernels.read_many
        gone = np.flatnonzero(taken == 0) if self._run(run, _NONE, ids, fields, 0, taken) else _NONE
        if self._values is not None:
            gone = self._values.read(read, arrays, gone)
        if self._goals is not None:
            self._goals.finish(arrays, hidden, gone)
        return gone

    def _weigh(self, arrays: Sequence[Array], weight: Weights | None) -> None:
        if self.read_plan.weighted:
            arrays[self._index + 1][...] = 1.0 if weight is None else weight

    def _run(self, read: Any, rows: Ids, ids: Ids, fields: Ids, block: int, taken: Ids) -> int:
        """Read items to addresses that count from ``block``. Return how many are gone."""
        goals = NO_GOALS if self._goals is None else self._goals.choose(ids)
        geometry = self._storage.geometry
        return int(read(geometry, rows, ids, fields, self._table, block, goals, taken))

    def replace(self, ids: Ids, gone: Ids, into: Window, rng: np.random.Generator) -> None:
        """Replace the items at ``gone`` by others, in ``ids`` and ``into``. See the class."""
        there = np.setdiff1d(np.arange(len(ids)), gone)
        if not len(there):
            there, gone = self._any(ids, into, rng)
        others = rng.choice(there, len(gone))
        ids[gone] = ids[others]
        for array in into.fields:
            array[gone] = array[others]

    def _any(self, ids: Ids, into: Window, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Draw any steps until some can be read. Return the positions of
        those, and of the others.
        """
        for _ in range(_ROUNDS):
            held = self._held()
            if not len(held):
                break
            ids[:] = rng.choice(held, len(ids))
            gone = self.fill(ids, into)
            if len(gone) < len(ids):
                return np.setdiff1d(np.arange(len(ids)), gone), gone
        raise Broken(
            f"{len(ids)} steps were overwritten before they could be read, and so were {_ROUNDS} "
            f"times as many others: the table's {self._storage.layout.capacity} steps are too few "
            "for this rate, raise its capacity"
        )

    def _held(self) -> Ids:
        """Return the ids of all steps, also of a table with few.

        Waits while a save is loaded into it.
        """
        deadline = Deadline(_LOADING_S)
        # The mark of a load is a byte that all processes share. It has no descriptor to wait for: a
        # reader may be in any process, and gets nothing but memory. So it looks, in the rare case
        # that a whole batch was lost.
        while self._storage.loading and not deadline.expired:
            time.sleep(_LOOK_S)
        heads = self._storage.heads()
        names, flags = heads[:, ID // 8] - 1, heads[:, FLAGS // 8]
        held: Ids = names[(names >= 0) & (flags & (FINAL | DELETED) == 0)]
        return held

    def _fields(self) -> Ids:
        """Return the table of fields for reading, without the arrays' addresses.

        See field_table.py.
        """
        outputs = (*self.read_plan.outputs, *self.read_plan.hidden)
        table = np.zeros((len(outputs), READING), np.int64)
        stored = self._storage.layout
        fields = stored_fields(stored.schema)
        for row, one in zip(table, outputs, strict=True):
            if one.source >= 0:
                offset, stride = stored.places[one.source]
                of = fields[one.source]
                row[: NBYTES + 1] = self._storage.base + offset, stride, of.nbytes
                row[UNIT] = of.dtype.itemsize
            zeros = one.field.padding == "zero"
            row[FRAMES : TIMES + 1] = one.frames, one.shown, zeros, one.times
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage, self.read_plan)


_NONE = np.empty(0, np.int64)
