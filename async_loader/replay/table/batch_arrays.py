"""The arrays of a batch: new ones that share a block, the caller's, and ids with weights."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader.batch_layout import BatchLayout, Region
from async_loader.replay.array_types import Array, Floats, Ids, Weights
from async_loader.replay.base.field_table import ARRAY_ADDRESS, ARRAY_STRIDE
from async_loader.replay.table.storage import COLUMN_BYTES
from async_loader.schema import Schema

_RECORD_BYTES = 64 << 20  # of one field; numpy's records end at 2 GiB


class BatchArrays:
    """The arrays of batches of one size. Small fields share a block.

    Parameters
    ----------
    schema : Schema
        Of a row.
    count : int
    template : int64 array [fields, 10]
        What kernels want to know of the fields before the index.

    Attributes
    ----------
    large : dict
        The shapes and dtypes of the fields with blocks of their own, by their positions.
    fields : int64 array [fields, 10]
        The template, with targets that are counted from where the index begins.
    rows : int64 array [count]
        Scratch.
    layout : BatchLayout | None
        Of the bytes in a block; ``None`` where not all fields lie there.
    """

    __slots__ = ("_block", "_pick", "fields", "large", "layout", "rows")

    def __init__(self, schema: Schema, count: int, template: Ids) -> None:
        regions, end, index = [], 0, len(template)
        self.large: dict[int, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for i, field in enumerate(schema.fields):
            regions.append(Region(field.name, field.dtype, (count, *field.shape), end))
            if field.nbytes >= COLUMN_BYTES or count * field.nbytes >= _RECORD_BYTES:
                self.large[i] = regions[i].shape, field.dtype
            else:
                end += -(-count * field.nbytes // 16) * 16
        small = [(str(i), one) for i, one in enumerate(regions) if i not in self.large]
        names, end = [name for name, _ in small], max(1, end)
        self._block = np.dtype(
            {
                "names": names,
                "formats": [(one.dtype, one.shape) for _, one in small],
                "offsets": [one.offset for _, one in small],
                "itemsize": end,
            }
        )
        self._pick: Any = (
            operator.itemgetter(*names)
            if len(names) > 1
            else lambda block: tuple(block[name] for name in names)
        )
        self.fields = template.copy()
        self.fields[:, ARRAY_ADDRESS] = [
            one.offset - regions[index].offset for one in regions[:index]
        ]
        self.fields[:, ARRAY_STRIDE] = [field.nbytes for field in schema.fields[:index]]
        self.rows = np.empty(count, np.int64)
        self.layout = None if self.large else BatchLayout(schema.structure, tuple(regions), end)

    def fresh(self) -> tuple[Array, ...]:
        """Return new arrays of the small fields in a block, as fields of one record: half the cost
        of separate arrays.
        """
        arrays: tuple[Array, ...] = self._pick(np.empty((), self._block))
        return arrays


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Arrays of the caller that batches are read into, one after the other.

    Made by `ReplayReader.target`.

    Attributes
    ----------
    arrays : list of arrays [count, *shape]
        One per field of the reader's schema.
    fields : int64 array [fields, 10]
        What kernels want to know, with targets that are counted from where the index begins.
    rows : int64 array [count]
        Scratch.
    """

    arrays: list[Array]
    fields: Ids
    rows: Ids

    def fresh(self) -> list[Array]:
        """Return the target's arrays."""
        return self.arrays


def split_index(index: Ids) -> tuple[Ids, Floats | None]:
    """Split the index of a plan into ids, and weights or ``None``. The inverse of `join_index`."""
    if index.ndim == 1:
        return index, None
    return index[:, 0], np.ascontiguousarray(index[:, 1]).view(np.float64)


def join_index(ids: Ids, weight: Weights | None) -> Ids:
    """Join ids and weights to one array that a plan can carry, ``[rows, 2]``."""
    if weight is None:
        return ids
    return np.stack((ids, weight.astype(np.float64).view(np.int64)), axis=1)
