"""Makes batches in this process: of samples, of arrays that are there, and of rows of a source.

Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.pipeline.batch import Batch
from async_loader.pipeline.batches import collate
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.schema import Field, Schema, supported
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
        buffer = self._slots.buffer_here(layout.nbytes)
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
        structure = tree.structure_of(batch)
        values = list(tree.leaves(batch, structure))
        arrays = [tensors.as_array(value) for value in values]
        found = [a for a in arrays if a is not None and supported(a.dtype)]
        if not found or len(found) != len(arrays):
            return Batch(tree=tree.rebuild(structure, map(_own, values)))
        fields = tuple(
            Field(a.shape, a.dtype, name=n)
            for n, a in zip(tree.names(structure), found, strict=True)
        )
        layout = BatchLayout.of_arrays(Schema(structure, fields), [a.shape for a in found])
        return self.arrays(layout, found)

    @staticmethod
    def lent(batch: object) -> Batch:
        """A batch whose arrays stay valid for as long as there are references to them: handed on
        without a copy.
        """
        return Batch(tree=batch)

    def arrays(self, layout: BatchLayout, arrays: Sequence[npt.NDArray[Any]]) -> Batch:
        """Copy arrays into memory of this layout."""
        buffer = self._slots.buffer_here(layout.nbytes)
        for view, array in zip(layout.views(buffer.root), arrays, strict=True):
            view[...] = array
        return Batch(buffer, layout)

    def rows(self, reader: Reader, index: npt.NDArray[np.int64], seed: Seed) -> Batch:
        """Let the reader do the work of a whole plan here."""
        schema = reader.schema
        if schema is None:
            return self.samples(reader.fetch(index, seed))
        layout = self._slots.layout(schema, len(index))
        buffer = self._slots.buffer_here(layout.nbytes)
        reader.read(index, layout.window(buffer.root, 0, len(index)), seed)
        return Batch(buffer, layout)


def _own(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if tensors.is_tensor(value) else value


def join(parts: Sequence[tuple[Schema, list[npt.NDArray[Any]]]]) -> list[npt.NDArray[Any]]:
    """Chunks of equal schema as one list of arrays."""
    return [
        np.concatenate(columns) for columns in zip(*(arrays for _, arrays in parts), strict=True)
    ]
