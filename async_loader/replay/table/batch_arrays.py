"""The arrays of a batch: new ones that share a block, the caller's, and ids with weights."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader.batch_layout import BatchLayout
from async_loader.replay.array_types import Array, Floats, Ids, Weights

Small = tuple[np.dtype[Any], tuple[int, ...], int]


Large = tuple[tuple[int, ...], np.dtype[Any]]


class BatchArrays:
    """The arrays of batches of one size. Small fields share a block.

    Parameters
    ----------
    count : int
    small : list of (dtype, shape, int)
        And where each begins in the block.
    nbytes : int
        Of the block.
    large : list of (shape, dtype) or None
        An entry for every field: ``None`` for those in the block.
    fields : int64 array [fields, 10]
        What kernels want to know, with targets that are counted from where the index begins.
    layout : BatchLayout | None
        Of the bytes in a block; ``None`` where not all fields lie there.
    """

    __slots__ = ("_block", "_pick", "any_large", "fields", "large", "layout", "rows")

    def __init__(
        self,
        count: int,
        small: Sequence[Small],
        nbytes: int,
        large: Sequence[Large | None],
        fields: Ids,
        layout: BatchLayout | None,
    ) -> None:
        names = [str(i) for i in range(len(small))]
        formats, starts = (
            [(dtype, shape) for dtype, shape, _ in small],
            [start for _, _, start in small],
        )
        self._block = np.dtype(
            {"names": names, "formats": formats, "offsets": starts, "itemsize": max(1, nbytes)}
        )
        self._pick: Any = (
            operator.itemgetter(*names)
            if len(names) > 1
            else lambda block: tuple(block[name] for name in names)
        )
        self.large, self.fields, self.layout = large, fields, layout
        self.any_large = len(small) < len(large)
        self.rows = np.empty(count, np.int64)

    def fresh(self) -> tuple[Array, ...]:
        """Return new arrays in a block, as fields of one record: half the
        cost of separate arrays.
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
    parts : tuple of Target
        The same memory in pieces that can be filled at once, where that is more than one; see
        `ReplayReader.at_once`.
    """

    arrays: list[Array]
    fields: Ids
    rows: Ids
    parts: tuple[Target, ...] = ()

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
