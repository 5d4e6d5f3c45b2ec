"""Layout of one batch's arrays within a block of bytes. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.schema import Field, Schema
from async_loader.source import Window

_LINE = 64  # a cache line; also the alignment that torch's kernels prefer


@dataclass(frozen=True, slots=True)
class Region:
    """One array of the batch: its shape with the batch dimension, and its position."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class BatchLayout:
    """Regions for every leaf of a batch within `nbytes` bytes.

    Attributes
    ----------
    structure : Structure
        How the arrays nest.
    regions : tuple of Region
        One per leaf.
    nbytes : int
        Size of the block.
    """

    structure: tree.Structure
    regions: tuple[Region, ...]
    nbytes: int

    @classmethod
    def contiguous(cls, schema: Schema, rows: int) -> BatchLayout:
        """Lay out every field contiguously, ``[rows, *shape]``, on a cache line of its own."""
        shapes = [(rows, *field.shape) for field in schema.fields]
        return cls.of_arrays(schema, shapes)

    @classmethod
    def of_arrays(cls, schema: Schema, shapes: Sequence[tuple[int, ...]]) -> BatchLayout:
        """Like `contiguous`, with the full shape of every array given."""
        regions, end = [], 0
        for field, shape in zip(schema.fields, shapes, strict=True):
            regions.append(Region(field.name, field.dtype, tuple(shape), end))
            end += -(-math.prod(shape) * field.dtype.itemsize // _LINE) * _LINE
        return cls(schema.structure, tuple(regions), max(end, _LINE))

    def views(self, root: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return one array per region on the memory of ``root``; each keeps ``root`` alive."""
        if self.nbytes >= 1 << 31:  # more than a record can have
            return [np.ndarray(r.shape, r.dtype, root, r.offset) for r in self.regions]
        record, names = self._record
        whole = np.ndarray((), record, root)
        return [whole[name] for name in names]

    @cached_property
    def schema(self) -> Schema:
        """Of one row, where every array has a row of each."""
        fields = [Field(one.shape[1:], one.dtype, name=one.name) for one in self.regions]
        return Schema(self.structure, tuple(fields))

    @cached_property
    def _record(self) -> tuple[np.dtype[Any], list[str]]:
        """Fields of one record are arrays at half the cost of arrays by themselves."""
        names = [str(i) for i in range(len(self.regions))]
        formats = [(one.dtype, one.shape) for one in self.regions]
        offsets = [one.offset for one in self.regions]
        described: Any = {
            "names": names, "formats": formats, "offsets": offsets, "itemsize": self.nbytes,
        }  # fmt: skip
        return np.dtype(described), names

    def window(self, root: npt.NDArray[np.uint8], start: int, stop: int) -> Window:
        """Return rows ``start`` to ``stop`` of every field."""
        return Window([view[start:stop] for view in self.views(root)])

    def rebuild(self, values: Sequence[Any]) -> Any:
        return tree.rebuild_batch(self.structure, values)
