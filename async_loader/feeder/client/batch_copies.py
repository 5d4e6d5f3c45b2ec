"""Batches that came over a socket, and copies of small ones, wherever they came. Takes nothing from anywhere."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.feeder.wire import BatchBlock, BatchForm

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
        self._copier = Copier(form.layout)

    def arrays(self, lying: BatchBlock) -> Arrays:
        """Of one batch: copies of a small one, or of one that would keep others alive; else as it lies."""
        copied = not lying.alone or self.form.nbytes < COPY_BELOW
        arrays = self._copier.arrays(lying.block) if copied else self.form.arrays(lying.block)
        return arrays if lying.rows == self.form.batch_size else [array[: lying.rows] for array in arrays]


class SocketBatch:
    """A batch as it came, until somebody wants it."""

    __slots__ = ("lying", "unpacking")

    def __init__(self, unpacking: Unpacking, lying: BatchBlock) -> None:
        self.unpacking, self.lying = unpacking, lying

    def arrays(self) -> Arrays:
        return self.unpacking.arrays(self.lying)
