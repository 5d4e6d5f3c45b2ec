"""Makes batches in this process: of samples, of arrays that are there, and of rows of a source.

Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout, Region
from async_loader.pipeline.batch import Batch
from async_loader.pipeline.batches import collate
from async_loader.pipeline.batches.arena import Arena, aligned
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.batches.transform import Transform
from async_loader.schema import Field, Schema, supported
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.source import Reader, Seed


class LocalCollator:
    """Used by the producer thread, and by the pool's thread to put unusual batches together.

    Parameters
    ----------
    slots : SlotAllocator
    collate_fn : callable | None
        The user's; sees the whole list of samples of a batch, in order.
    """

    def __init__(self, slots: SlotAllocator, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._slots = slots
        self._collate_fn = collate_fn
        self._schema: Schema | None = None
        # names, dtypes and shapes of the last batch of arrays, and how it was laid out
        self._last: tuple[list[tuple[Any, ...]], BatchLayout] | None = None
        self._room = 0
        """Bytes beyond those of a batch as it is made, for what a transform adds to it."""

    def samples(self, samples: Sequence[Any]) -> Batch:
        """Collate, with the user's collate_fn or by the default rules."""
        if self._collate_fn is not None:
            return self.ready(self._collate_fn(list(samples)))
        # The schema of the last batch first: finding it anew costs as much as writing a few rows.
        batch = self._fill(self._schema, samples) or self._fill(
            collate.schema_of(samples[0]), samples
        )
        return batch or Batch(tree=collate.collate(samples))

    def _fill(self, schema: Schema | None, samples: Sequence[Any]) -> Batch | None:
        if schema is None:
            return None
        layout = self._slots.layout(schema, len(samples))
        buffer = self._slots.buffer_here(layout.nbytes + self._room)
        try:
            collate.fill(schema, samples, layout.views(buffer.root))
        except tree.Misfit:
            return None
        self._schema = schema
        return Batch(buffer, layout)

    def ready(self, batch: object) -> Batch:
        """Copy a batch of arrays, so that its maker may use them again; other objects in it stay as
        they are.
        """
        flat = _flat(batch)
        last = self._last
        if flat is not None and last is not None and last[0] == flat:
            assert isinstance(batch, dict)
            return self.arrays(last[1], list(batch.values()))
        structure = tree.structure_of(batch)
        values = list(tree.leaves(batch, structure))
        arrays = [tensors.as_array(value) for value in values]
        found = [a for a in arrays if a is not None and supported(a.dtype)]
        if not found or len(found) != len(arrays):
            rebuild = tree.rebuild_batch if type(batch) is tree.Fields else tree.rebuild
            return Batch(tree=rebuild(structure, map(tensors.copied, values)))
        fields = tuple(
            Field(a.shape, a.dtype, name=n)
            for n, a in zip(tree.names(structure), found, strict=True)
        )
        layout = BatchLayout.of_arrays(Schema(structure, fields), [a.shape for a in found])
        self._last = None if flat is None else (flat, layout)
        return self.arrays(layout, found)

    @staticmethod
    def lent(batch: object) -> Batch:
        """A batch whose arrays stay valid for as long as there are references to them: handed on
        without a copy.
        """
        return Batch(tree=batch)

    def arrays(self, layout: BatchLayout, arrays: Sequence[npt.NDArray[Any]]) -> Batch:
        """Copy arrays into memory of this layout."""
        buffer = self._slots.buffer_here(layout.nbytes + self._room)
        for view, array in zip(layout.views(buffer.root), arrays, strict=True):
            view[...] = array
        return Batch(buffer, layout)

    def rows(self, reader: Reader, index: npt.NDArray[np.int64], seed: Seed) -> Batch:
        """Let the reader do the work of a whole plan here."""
        schema = reader.schema
        if schema is None:
            return self.samples(reader.fetch(index, seed))
        layout = self._slots.layout(schema, len(index))
        buffer = self._slots.buffer_here(layout.nbytes + self._room)
        reader.read(index, layout.window(buffer.root, 0, len(index)), seed)
        return Batch(buffer, layout)

    def transformed(
        self, batch: Batch, transform: Transform, seed: Seed, *, compact: bool
    ) -> Batch:
        """What the user's function makes of a batch.

        Arrays that it hands on stay where they lie; what it adds is copied behind them, so that its
        maker may use it again.

        Parameters
        ----------
        compact : bool
            A device follows, to which the block is copied as a whole: nothing that the function has
            left out may lie in it.
        """
        layout, buffer = batch.layout, batch.buffer
        arrays = transform.arrays(
            layout.rebuild(layout.views(buffer.root))
            if layout is not None and buffer is not None
            else batch.tree
        )
        # looked up before the function may change the dict
        given = list(tree.leaves(arrays, tree.structure_of(arrays)))
        result = transform(arrays, seed)
        kept = set(map(id, given))
        found = list(tree.leaves(result, tree.structure_of(result)))
        if compact and not kept <= set(map(id, found)):
            return self.ready(result)
        if layout is not None and buffer is not None:
            return self._placed(result, buffer, layout.nbytes) or self.ready(result)
        if compact:
            return self.ready(result)
        return Batch(
            tree=tree.transform(result, lambda one: one if id(one) in kept else tensors.copied(one))
        )

    def _placed(self, result: object, buffer: BatchBuffer, used: int) -> Batch | None:
        """The result on the block of the batch that it was made of; ``None`` if that is too small,
        which it will not be for the next one, or if a leaf is no numeric array.
        """
        structure = tree.structure_of(result)
        arrays = [tensors.as_array(value) for value in tree.leaves(result, structure)]
        block = Arena(buffer.root, used)
        regions, missing = [], 0
        for name, array in zip(tree.names(structure), arrays, strict=True):
            if array is None or not supported(array.dtype):
                return None
            offset = block.offset_of(array)
            if offset is None:
                offset = block.take(array.nbytes)
                if offset is None:
                    missing += aligned(array.nbytes)
                    continue
                np.ndarray(array.shape, array.dtype, buffer.root, offset)[...] = array
            regions.append(Region(name, array.dtype, array.shape, offset))
        if missing:
            self._room = max(self._room, block.used + missing - used)
            return None
        return Batch(buffer, BatchLayout(structure, tuple(regions), block.used))


def _flat(batch: object) -> list[tuple[Any, ...]] | None:
    """What decides how a dict of arrays is laid out; ``None`` for anything else."""
    if type(batch) is not dict and type(batch) is not tree.Fields:
        return None
    found = []
    for name, value in batch.items():
        if type(value) is not np.ndarray:
            return None
        found.append((name, value.dtype, value.shape))
    return found


def join(parts: Sequence[tuple[Schema, list[npt.NDArray[Any]]]]) -> list[npt.NDArray[Any]]:
    """Chunks of equal schema as one list of arrays."""
    return [
        np.concatenate(columns) for columns in zip(*(arrays for _, arrays in parts), strict=True)
    ]
