"""Reads a table's rows, in any process, without a lock. A torn row is never delivered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from async_loader.batch_layout import BatchLayout, Region
from async_loader.errors import Broken
from async_loader.lifecycle import Deadline
from async_loader.replay.array_types import Array, Ids, Weights
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    FRAMES,
    NBYTES,
    READING,
    ZERO_PADDED,
)
from async_loader.replay.base.link_table import (
    BEFORE,
    DISCOUNTED,
    DISCOUNTS,
    FOLLOWED,
    GAMMA,
    NO_LINKS,
    NUMBER_BYTES,
    NUMBERS,
    PLACES,
    REWARD,
    STEPS,
)
from async_loader.replay.base.row_format import STACK_WORDS
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Reading
from async_loader.replay.table.batch_arrays import BatchArrays, Large, Small, Target, split_index
from async_loader.replay.table.readahead import Readahead
from async_loader.replay.table.storage import COLUMN_BYTES, Storage, stored_fields
from async_loader.schema import Schema, samples_of
from async_loader.shm.array_pool import ArrayPool
from async_loader.source import Seed, Window

# Up to here copying takes some hundred microseconds at most, and keeps the GIL. See
# compiled.kernel.
_SHORT_BYTES = 1 << 20
_RECORD_BYTES = 64 << 20  # of one field; numpy's records end at 2 GiB
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

    Thread rule: one thread at a time. Cost: about 15 us for 256 rows of 200 bytes out of a million,
    180 us for 4096.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan

    Attributes
    ----------
    row_bytes : int
        What an item takes in a batch, with its id.
    """

    def __init__(self, storage: Storage, read_plan: ReadPlan) -> None:
        from async_loader.replay import kernels  # late: see compiled.py

        self._kernels = kernels
        self._storage = storage
        self.read_plan = read_plan
        self._template = self._fields()
        self._index = len(read_plan.outputs) + read_plan.computed
        # a read that may wait for a disk releases the GIL
        self._short = 0 if storage.on_disk else _SHORT_BYTES // max(1, read_plan.schema.nbytes)
        self.row_bytes = read_plan.schema.nbytes + 8
        self._readahead = Readahead(storage, read_plan) if storage.on_disk else None
        self._scratch_rows = -1
        self._plans: dict[int, BatchArrays] = {}
        self._blocks = ArrayPool()
        self._reward = (
            storage.cell(read_plan.outputs[read_plan.reward].source).reshape(
                storage.layout.rows, -1
            )
            if read_plan.reward >= 0
            else None
        )
        self._one_pass = read_plan.single or read_plan.depth + read_plan.n <= STACK_WORDS

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
        ids, weight = split_index(index)
        ids = np.array(ids, np.int64)
        gone = self.fill(ids, into, weight)
        if len(gone):
            self.replace(ids, gone, into, np.random.default_rng(seed))

    def announce(self, ids: Ids) -> None:
        """Have the rows of a batch brought in, if they are on a disk. Waits for none of them."""
        if self._readahead is not None:
            self._readahead.fetch(ids)

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
        plan = self._plans.get(count) or self._plan(count)
        shared = iter(plan.fresh())
        return Window(
            [
                next(shared) if of_its_own is None else self._blocks.array(*of_its_own)
                for of_its_own in plan.large
            ]
        )

    def _plan(self, count: int) -> BatchArrays:
        small: list[Small] = []
        large: list[Large | None] = []
        starts, end = [], 0
        for field in self.schema.fields:
            shape = (count, *field.shape)
            if field.nbytes >= COLUMN_BYTES or count * field.nbytes >= _RECORD_BYTES:
                large.append((shape, field.dtype))
                starts.append(0)
            else:
                large.append(None)
                starts.append(end)
                small.append((field.dtype, shape, end))
                end += -(-count * field.nbytes // 16) * 16
        fields = self._template.copy()
        fields[:, ARRAY_ADDRESS] = np.array(starts[: len(fields)], np.int64) - starts[self._index]
        fields[:, ARRAY_STRIDE] = [field.nbytes for field in self.schema.fields[: len(fields)]]
        if len(self._plans) >= 16:
            self._plans.clear()
        links = self._links(starts[self._index - 1] - starts[self._index])
        layout = None
        if len(small) == len(large):
            regions = [
                Region(field.name, field.dtype, (count, *field.shape), start)
                for field, start in zip(self.schema.fields, starts, strict=True)
            ]
            layout = BatchLayout(self.schema.structure, tuple(regions), max(1, end))
        made = self._plans[count] = BatchArrays(count, small, end, large, fields, links, layout)
        return made

    def layout(self, count: int) -> BatchLayout | None:
        """How the arrays of `drawn` and `these` lie in the block that they share, which is the
        ``base`` of each.
        """
        return (self._plans.get(count) or self._plan(count)).layout

    def take(self, ids: Ids, weight: Weights | None = None) -> tuple[Window, Ids]:
        """As `fill`, into new arrays. The index is ``ids`` itself."""
        plan = self._plans.get(len(ids)) or self._plan(len(ids))
        if plan.any_large:
            into = self.fresh(len(ids))
            return into, self.fill(ids, into, weight)
        into = Window(list(plan.fresh()))
        index = into.fields[self._index]
        index[...] = ids
        fields = plan.fields.copy()
        fields[:, ARRAY_ADDRESS] += address_of(index)
        return into, self._read(ids, fields, into, weight)

    def target(self, arrays: Sequence[Array]) -> Target:
        """Wrap the caller's arrays ``[count, *shape]``, one for each field, in C order, as a target
        for batches.
        """
        whole, count, most = self._target(arrays), len(arrays[self._index]), max(1, self._short)
        if count <= most or not self.at_once(most):
            return whole
        cuts = [slice(at, at + most) for at in range(0, count, most)]
        return replace(
            whole, parts=tuple(self._target([array[cut] for array in arrays]) for cut in cuts)
        )

    def _target(self, arrays: Sequence[Array]) -> Target:
        fields, at = self._template.copy(), self._index
        fields[:, ARRAY_ADDRESS] = [
            address_of(array) - address_of(arrays[at]) for array in arrays[: len(fields)]
        ]
        fields[:, ARRAY_STRIDE] = [array.strides[0] for array in arrays[: len(fields)]]
        links = self._links(address_of(arrays[at - 1]) - address_of(arrays[at]))
        return Target(list(arrays), fields, links, np.empty(len(arrays[at]), np.int64))

    def _links(self, discounts: int) -> Ids:
        """Return what kernels know of items that show other rows; see link_table.py.

        ``discounts``: the bytes from the index to the array before it.
        """
        read_plan = self.read_plan
        if read_plan.single:
            return NO_LINKS
        links = np.zeros(PLACES, np.int64)
        links[BEFORE], links[STEPS], links[FOLLOWED] = (
            read_plan.depth,
            read_plan.n,
            read_plan.successor,
        )
        links[GAMMA:DISCOUNTED].view(np.float64)[0] = read_plan.gamma
        links[DISCOUNTED], links[DISCOUNTS] = read_plan.discounts, discounts
        links[REWARD] = read_plan.reward
        if self._reward is not None:
            links[NUMBERS], links[NUMBER_BYTES] = self._reward.shape[1], self._reward.itemsize
        return links

    def drawn(
        self, count: int, draw_into: Callable[[Reading], bool], into: Target | None = None
    ) -> Sequence[Array] | None:
        """Draw and read items in one kernel, into new arrays or a target.

        Under the table's lock, for items of small fields.

        Returns ``None`` if the sampler cannot. See samplers, NOTE [shortcuts]. Cost: about 18 us
        for 256 uniform ones of 200 bytes out of a million, of which reading takes 11.
        """
        plan = into or self._plans.get(count) or self._plan(count)
        arrays, at = plan.fresh(), self._index
        weight = arrays[at + 1] if self.read_plan.weighted else None
        there = draw_into(
            Reading(self._storage.geometry, plan.fields, plan.links, plan.rows, arrays[at], weight)
        )
        return arrays if there else None

    def these(
        self, rows: Ids, weight: Weights | None, into: Target | None = None
    ) -> Sequence[Array] | None:
        """Read the items in ``rows``, as `drawn`. Returns ``None`` if one could not be read."""
        plan = into or self._plans.get(len(rows)) or self._plan(len(rows))
        small = plan.fresh()
        missing = self._kernels.read_rows(
            self._storage.geometry, rows, plan.fields, plan.links, small[self._index]
        )
        if missing:
            return None
        if self.read_plan.weighted:
            small[self._index + 1][...] = 1.0 if weight is None else weight
        return small

    def at_once(self, count: int) -> bool:
        """Return whether `drawn` and `these` apply: to short batches of small fields."""
        if not self._one_pass or count > self._short:  # never on a disk
            return False
        return not (self._plans.get(count) or self._plan(count)).any_large

    def fill(self, ids: Ids, into: Window, weight: Weights | None = None) -> Ids:
        """Read the items that are there.

        Return the positions of the others, whose rows hold any bytes.
        """
        fields = self._template
        arrays = into.fields[: len(self.read_plan.outputs)]
        fields[:, ARRAY_ADDRESS] = [address_of(array) for array in arrays]
        fields[:, ARRAY_STRIDE] = [array.strides[0] for array in arrays]
        into.fields[self._index][...] = ids
        return self._read(ids, fields, into, weight)

    def _read(self, ids: Ids, fields: Ids, into: Window, weight: Weights | None) -> Ids:
        read_plan = self.read_plan
        taken = np.empty(len(ids), np.int64)
        gone = (
            self._single(ids, fields, taken)
            if read_plan.single
            else self._linked(ids, fields, taken, into)
        )
        if read_plan.weighted:
            into.fields[self._index + 1][...] = 1.0 if weight is None else weight
        return np.flatnonzero(taken == 0) if gone else _NONE

    def _single(self, ids: Ids, fields: Ids, taken: Ids) -> int:
        read = self._kernels.read if len(ids) <= self._short else self._kernels.read_many
        return int(read(self._storage.geometry, ids, fields, taken))

    def _linked(self, ids: Ids, fields: Ids, taken: Ids, into: Window) -> int:
        self._walk(ids, taken)
        if self.read_plan.discounts:
            self._returns(taken, into)
        return self._copy(fields, taken)

    def _walk(self, ids: Ids, taken: Ids) -> None:
        read_plan = self.read_plan
        if self._scratch_rows != len(ids):
            fresh = np.empty((len(ids), read_plan.depth + read_plan.n), np.int64)
            stamps, count = np.empty_like(fresh), len(ids)
            # no call between: all or none
            self._names, self._stamps, self._scratch_rows = fresh, stamps, count
        n, successor, depth = read_plan.n, read_plan.successor, read_plan.depth
        names, stamps, geometry = self._names, self._stamps, self._storage.geometry
        walk = self._kernels.walk_on_disk if self._storage.on_disk else self._kernels.walk
        walk(geometry, ids, n, successor, depth, names, stamps, taken)

    def _copy(self, fields: Ids, taken: Ids) -> int:
        read_plan, kernels, few = self.read_plan, self._kernels, len(taken) <= self._short
        copy = kernels.copy_items if few else kernels.copy_many_items
        names, stamps, geometry = self._names, self._stamps, self._storage.geometry
        depth, successor = read_plan.depth, read_plan.successor
        return int(copy(geometry, fields, names, stamps, taken, depth, successor))

    def _returns(self, taken: Ids, into: Window) -> None:
        read_plan, count = self.read_plan, len(taken)
        reward = _NO_REWARD if self._reward is None else self._reward
        summed = np.empty((count, reward.shape[1]), reward.dtype)
        ends = np.empty(count, np.float32)
        geometry, names, stamps = self._storage.geometry, self._names, self._stamps
        self._kernels.returns(
            geometry, reward, names, stamps, taken, read_plan.depth, read_plan.gamma, summed, ends
        )
        into.fields[self._index - 1][...] = ends
        if self._reward is not None:
            into.fields[read_plan.reward][...] = summed.reshape(into.fields[read_plan.reward].shape)

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
        found = np.empty_like(ids)
        for _ in range(_ROUNDS):
            self._kernels.names_of(
                self._storage.geometry, rng.integers(0, self._storage.layout.rows, len(ids)), found
            )
            ids[:] = found
            gone = self.fill(ids, into)
            if len(gone) < len(ids):
                return np.setdiff1d(np.arange(len(ids)), gone), gone
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
        rows, deadline = self._storage.layout.rows, Deadline(_LOADING_S)
        # The mark of a load is a byte that all processes share. It has no descriptor to wait for: a
        # reader may be in any process, and gets nothing but memory. So it looks, in the rare case
        # that a whole batch was lost.
        while self._storage.loading and not deadline.expired:
            time.sleep(_LOOK_S)
        names = np.empty(rows, np.int64)
        self._kernels.names_of(self._storage.geometry, np.arange(rows), names)
        held: Ids = names[names >= 0]
        return held

    def _fields(self) -> Ids:
        """Return the table of fields for reading, without the arrays' addresses.

        See field_table.py.
        """
        template = np.zeros((len(self.read_plan.outputs), READING), np.int64)
        stored = self._storage.layout
        fields = stored_fields(stored.schema)
        for f, one in enumerate(self.read_plan.outputs):
            offset, stride = stored.places[one.source]
            template[f, : NBYTES + 1] = (
                self._storage.base + offset,
                stride,
                fields[one.source].nbytes,
            )
            template[f, FRAMES : ZERO_PADDED + 1] = (
                one.frames,
                one.anchor,
                one.field.padding == "zero",
            )
        if self.read_plan.reward >= 0:
            template[self.read_plan.reward, NBYTES] = 0  # is computed
        return template

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage, self.read_plan)


_NONE = np.empty(0, np.int64)
_NO_REWARD = np.empty((0, 0))
