"""Reads compressed values where a reader has read their locators, in any process."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base.field_table import address_of
from async_loader.replay.codec import Lz4
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.table.compressed_ring import FLOOR
from async_loader.replay.table.readahead import bring_in
from async_loader.replay.table.storage import Storage


class CompressedValues:
    """The fields with a codec of the batches of a reader.

    They are copied out of the ring, the floor is looked at (compressed_ring.py, NOTE [floor]), and
    each is decompressed to the place that it has in the batch. A value that a batch shows more than
    once, as the frames of stacks are, is decompressed once, and copied.

    Cost: 3 us for a frame of Pong, of which decompressing takes 1.3.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
    """

    def __init__(self, storage: Storage, read_plan: ReadPlan) -> None:
        from async_loader.replay.kernels import compressed  # late: see compiled.py

        self._storage, self._compressed, self._codec = storage, compressed, Lz4()
        fields = storage.layout.schema.fields
        self._coded = {
            i: fields[one.source]
            for i, one in enumerate(read_plan.outputs)
            if one.source >= 0 and fields[one.source].codec is not None
        }
        offset, self._size = storage.layout.ring
        self._ring = storage.base + offset
        self._floor = storage.ring_words.ctypes.data + 8 * FLOOR

    def locators(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays of a batch, with others for locators in place of those of values."""
        made = list(arrays)
        for i, field in self._coded.items():
            shape = arrays[i].shape[: arrays[i].ndim - len(field.shape)]
            made[i] = np.zeros((*shape, 2), np.int64)
        return made

    def read(self, locators: Sequence[Array], arrays: Sequence[Array], gone: Ids) -> Ids:
        """Read the values of items, but for those that are ``gone``. Return which are gone now."""
        there = np.ones(len(arrays[-1]), np.bool_)
        there[gone] = False
        for nbytes in dict.fromkeys(field.nbytes for field in self._coded.values()):
            pairs = [
                (locators[i], arrays[i])
                for i, field in self._coded.items()
                if field.nbytes == nbytes
            ]
            self._read_values(nbytes, pairs, there)
        return np.flatnonzero(~there)

    def _read_values(self, nbytes: int, pairs: Sequence[tuple[Array, Array]], there: Bools) -> None:
        places, targets, items = _flat(nbytes, pairs, np.flatnonzero(there))
        for address in targets[places[:, 1] == 0].tolist():  # before the episode's start
            ctypes.memset(address, 0, nbytes)
        known = np.flatnonzero((places[:, 1] > 0) & (places[:, 1] <= nbytes))
        places, targets, items = places[known], targets[known], items[known]
        _, first, of_value = np.unique(places[:, 0], return_index=True, return_inverse=True)
        begins, counts = places[first, 0], places[first, 1]
        starts = np.cumsum(counts) - counts
        if self._storage.on_disk:
            bring_in(self._ring, begins % self._size, begins % self._size + counts)
        scratch = np.empty(int(counts.sum()), np.uint8)
        floor = self._compressed.take_values(
            self._ring, self._size, self._floor, begins, counts, scratch.ctypes.data, starts
        )
        whole, sources = begins >= floor, targets[first]
        self._codec.decompress(scratch.data, starts[whole], counts[whole], sources[whole], nbytes)
        there[items[~whole[of_value]]] = False
        again = np.flatnonzero(targets != sources[of_value])
        self._compressed.copy_values(targets[again], sources[of_value][again], nbytes)


def _flat(nbytes: int, pairs: Sequence[tuple[Array, Array]], items: Ids) -> tuple[Ids, Ids, Ids]:
    """Return the locators ``[values, 2]`` of items, the addresses of their values in the batch, and
    the item of each.
    """
    places, targets, owners = [], [], []
    for locators, values in pairs:
        each = math.prod(locators.shape[1:-1])
        first = address_of(values) + items * values.strides[0]
        places.append(locators[items].reshape(-1, 2))
        targets.append((first[:, None] + np.arange(each) * nbytes).reshape(-1))
        owners.append(np.repeat(items, each))
    return np.concatenate(places), np.concatenate(targets), np.concatenate(owners)
