"""Batches that came over a socket, and copies of small ones, wherever they came. Takes nothing from anywhere."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.wire import BatchForm
from async_loader.layout import BatchLayout

COPY_BELOW = 64 << 10
"""Bytes under which a batch is cheaper to copy out than to lend; and it keeps nothing alive that came with it."""
Arrays = list[npt.NDArray[Any]]
Block = npt.NDArray[np.uint8]


class Copier:
    """Copies blocks of one layout: its arrays are made as fields of one record, half the cost of making each by itself."""

    def __init__(self, layout: BatchLayout) -> None:
        regions = layout.regions
        names = [str(i) for i in range(len(regions))]
        formats = [(one.dtype, one.shape) for one in regions]
        starts = [one.offset for one in regions]
        self._nbytes = layout.nbytes
        self._record = np.dtype({"names": names, "formats": formats, "offsets": starts, "itemsize": layout.nbytes})
        self._pick: Any = operator.itemgetter(*names) if len(names) > 1 else lambda block: (block["0"],)

    def arrays(self, block: Block) -> Arrays:
        """On fresh memory. Cost: 5 us and the copy."""
        return list(self._pick(np.ndarray((), self._record, block[: self._nbytes].copy())))


class Unpacking:
    """How the batches of one reader are got out of messages."""

    def __init__(self, form: BatchForm) -> None:
        self.form = form
        self._copier = Copier(form.layout) if form.nbytes < COPY_BELOW else None

    def arrays(self, block: Block, rows: int) -> Arrays:
        """Of one batch: copies of a small one, a large one where it lies."""
        arrays = self.form.arrays(block) if self._copier is None else self._copier.arrays(block)
        return arrays if rows == self.form.batch_size else [array[:rows] for array in arrays]


class Arrived:
    """A batch as it came, until somebody wants it."""

    __slots__ = ("block", "rows", "unpacking")

    def __init__(self, unpacking: Unpacking, block: Block, rows: int) -> None:
        self.unpacking, self.block, self.rows = unpacking, block, rows

    def arrays(self) -> Arrays:
        return self.unpacking.arrays(self.block, self.rows)
