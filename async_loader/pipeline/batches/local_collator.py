"""Fills places in this process: samples, ready batches and rows of a source become outcomes. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.pipeline.batch import HeapBatch, Outcome, SlotBatch
from async_loader.pipeline.batches import collate
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.schema import Field, Schema, supported
from async_loader.source import Reader, Seed


class LocalCollator:
    """Used by the producer thread, and by the crew to put unusual batches together.

    Parameters
    ----------
    places : Places
    collate_fn : callable | None
        The user's; sees the whole list of samples of a batch, in order.
    """

    def __init__(self, places: SlotAllocator, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._places = places
        self._collate_fn = collate_fn
        self._schema: Schema | None = None

    def samples(self, samples: Sequence[Any]) -> Outcome:
        """Collate, with the user's collate_fn or by the default rules."""
        if self._collate_fn is not None:
            return self.ready(self._collate_fn(list(samples)))
        # The schema of the last batch first: finding it anew costs as much as writing a few rows.
        outcome = self._fill(self._schema, samples) or self._fill(collate.schema_of(samples[0]), samples)
        return outcome or HeapBatch(collate.collate(samples))

    def _fill(self, schema: Schema | None, samples: Sequence[Any]) -> Outcome | None:
        if schema is None:
            return None
        place = self._places.here(self._places.layout(schema, len(samples)))
        try:
            collate.fill(schema, samples, place.layout.views(place.root))
        except tree.Misfit:
            return None
        self._schema = schema
        return SlotBatch(place)

    def ready(self, batch: Any) -> Outcome:
        """Copy a batch of arrays into a place, so that its maker may use the arrays again; others go as they are."""
        structure = tree.structure_of(batch)
        values = list(tree.leaves(batch, structure))
        arrays = [tensors.as_array(value) for value in values]
        found = [a for a in arrays if a is not None and supported(a.dtype)]
        if not found or len(found) != len(arrays):
            return HeapBatch(tree.rebuild(structure, map(_own, values)))
        fields = tuple(Field(a.shape, a.dtype, name=n) for n, a in zip(tree.names(structure), found, strict=True))
        layout = BatchLayout.of_arrays(Schema(structure, fields), [a.shape for a in found])
        return self.arrays(layout, found)

    @staticmethod
    def lent(batch: Any) -> Outcome:
        """A batch whose arrays stay valid for as long as anyone holds them: handed on without a copy."""
        return HeapBatch(batch)

    def arrays(self, layout: BatchLayout, arrays: Sequence[npt.NDArray[Any]]) -> SlotBatch:
        """Copy arrays into a place of this layout."""
        place = self._places.here(layout)
        for view, array in zip(layout.views(place.root), arrays, strict=True):
            view[...] = array
        return SlotBatch(place)

    def rows(self, reader: Reader, index: npt.NDArray[np.int64], seed: Seed) -> Outcome:
        """Let the reader do the work of a whole plan here."""
        schema = reader.schema
        if schema is None:
            return self.samples(reader.fetch(index, seed))
        place = self._places.here(self._places.layout(schema, len(index)))
        reader.read(index, place.layout.window(place.root, 0, len(index)), seed)
        return SlotBatch(place)


def _own(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if tensors.is_tensor(value) else value


def join(parts: Sequence[tuple[Schema, list[npt.NDArray[Any]]]]) -> list[npt.NDArray[Any]]:
    """Chunks of equal schema as one list of arrays."""
    return [np.concatenate(columns) for columns in zip(*(arrays for _, arrays in parts), strict=True)]
