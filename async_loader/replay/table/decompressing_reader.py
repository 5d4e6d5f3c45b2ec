"""Reads rows whose values are compressed: locators first, then the values, in any process."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Bools, Ids, Weights
from async_loader.replay.base.array_address import address_of
from async_loader.replay.codec import Lz4
from async_loader.replay.read_plan import Output, ReadPlan
from async_loader.replay.table.compressed_ring import FLOOR
from async_loader.replay.table.readahead import bring_in
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.storage import Storage, stored_fields
from async_loader.schema import Field, Schema
from async_loader.source import Window


def plan_of_locators(read_plan: ReadPlan, schema: Schema) -> ReadPlan:
    """Return how the same items are read as they lie in rows of a table of ``schema``."""
    stored = stored_fields(schema)
    outputs = [
        replace(one, field=_located(one, schema.fields[one.source], stored[one.source]))
        for one in read_plan.outputs
    ]
    fields = [one.field for one in outputs]
    rest = read_plan.schema.fields[len(fields) :]
    delivered = Schema(read_plan.schema.structure, (*fields, *rest))
    return replace(read_plan, outputs=tuple(outputs), schema=delivered)


def _located(one: Output, value: Field, stored: Field) -> Field:
    if value.codec is None:
        return one.field
    before = one.field.shape[: len(one.field.shape) - len(value.shape)]
    return replace(one.field, shape=(*before, *stored.shape), dtype=stored.dtype)


class DecompressingReader(ReplayReader):
    """As `ReplayReader`, of a table with compressed values.

    Another reader reads the rows, with locators in place of the values. These are copied out of the
    ring, the floor is looked at (compressed_ring.py, NOTE [floor]), and each is decompressed to the
    place that it has in the batch. A value that a batch shows more than once, as the frames of
    stacks are, is decompressed once, and copied.

    Cost: 3 us for a frame of Pong, of which decompressing takes 1.3.

    Parameters
    ----------
    rows : ReplayReader
        Reads the rows, by `plan_of_locators`.
    storage : Storage
    read_plan : ReadPlan
    """

    def __init__(self, rows: ReplayReader, storage: Storage, read_plan: ReadPlan) -> None:
        super().__init__(storage, read_plan)
        from async_loader.replay.kernels import compressed  # late: see compiled.py

        self._of_rows, self._compressed, self._codec = rows, compressed, Lz4()
        fields = storage.layout.schema.fields
        by_size: dict[int, list[int]] = {}
        for i, one in enumerate(read_plan.outputs):
            if fields[one.source].codec is not None:
                by_size.setdefault(fields[one.source].nbytes, []).append(i)
        self._by_size = by_size
        offset, self._size = storage.layout.ring
        self._ring = storage.base + offset
        self._floor = storage.ring_words.ctypes.data + 8 * FLOOR

    def at_once(self, count: int) -> bool:
        """Return False: values are decompressed without the lock."""
        return False

    def announce(self, ids: Ids) -> None:
        """Have the rows of a batch brought in. Their values follow when the rows are there."""
        self._of_rows.announce(ids)

    def take(self, ids: Ids, weight: Weights | None = None) -> tuple[Window, Ids]:
        """See `ReplayReader.take`."""
        into = self.fresh(len(ids))
        return into, self.fill(ids, into, weight)

    def fill(self, ids: Ids, into: Window, weight: Weights | None = None) -> Ids:
        """See `ReplayReader.fill`."""
        arrays: list[Array] = list(into.fields)
        shown = self._of_rows.schema.fields
        for listed in self._by_size.values():
            for i in listed:
                arrays[i] = np.zeros((len(ids), *shown[i].shape), np.int64)
        gone = np.zeros(len(ids), np.bool_)
        gone[self._of_rows.fill(ids, Window(arrays), weight)] = True
        for nbytes, listed in self._by_size.items():
            self._read_values(nbytes, [(arrays[i], into.fields[i]) for i in listed], gone)
        return np.flatnonzero(gone)

    def _read_values(self, nbytes: int, pairs: Sequence[tuple[Array, Array]], gone: Bools) -> None:
        """Read the values of some arrays of locators into arrays of values, and note items of which
        one is gone.
        """
        places, targets, items = _flat(nbytes, pairs, ~gone)
        for address in targets[places[:, 1] == 0].tolist():  # before the episode's start
            _zeros(address, nbytes)
        there = np.flatnonzero((places[:, 1] > 0) & (places[:, 1] <= nbytes))
        places, targets, items = places[there], targets[there], items[there]
        _, first, of_value = np.unique(places[:, 0], return_index=True, return_inverse=True)
        counts = places[first, 1]
        starts = np.cumsum(counts) - counts
        if self._storage.on_disk:
            begins = np.sort(places[first, 0] % self._size)
            bring_in(self._ring, begins, begins + int(counts.max(initial=0)))
        scratch = np.empty(int(counts.sum()), np.uint8)
        floor = self._compressed.take_values(
            self._ring,
            self._size,
            self._floor,
            places[first, 0],
            counts,
            scratch.ctypes.data,
            starts,
        )
        whole, places_of = places[first, 0] >= floor, targets[first]
        self._codec.decompress(scratch.data, starts[whole], counts[whole], places_of[whole], nbytes)
        gone[items[~whole[of_value]]] = True
        sources = places_of[of_value]
        again = np.flatnonzero(targets != sources)
        self._compressed.copy_values(targets[again], sources[again], nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._of_rows, self._storage, self.read_plan)


def _flat(nbytes: int, pairs: Sequence[tuple[Array, Array]], there: Bools) -> tuple[Ids, Ids, Ids]:
    """Return the locators ``[values, 2]`` of all items that are there, the addresses of their
    values in the batch, and their items.
    """
    items = np.flatnonzero(there)
    places, targets, owners = [], [], []
    for locators, values in pairs:
        each = math.prod(locators.shape[1:-1])
        first = address_of(values) + items * values.strides[0]
        places.append(locators.reshape(len(there), each, 2)[items].reshape(-1, 2))
        targets.append((first[:, None] + np.arange(each) * nbytes).reshape(-1))
        owners.append(np.repeat(items, each))
    return np.concatenate(places), np.concatenate(targets), np.concatenate(owners)


def _zeros(address: int, nbytes: int) -> None:
    ctypes.memset(address, 0, nbytes)
