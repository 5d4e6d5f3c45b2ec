"""Batches from a socket, and copies of small batches."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.feeder.wire import BatchBlock, BatchForm
from async_loader.shm.slot_ring import COPY_BELOW

Arrays = list[npt.NDArray[Any]]
Block = npt.NDArray[np.uint8]


class Copier:
    """Copies blocks of one layout. Arrays are made as fields of one record, at half the cost."""

    def __init__(self, layout: BatchLayout) -> None:
        regions = layout.regions
        names = [str(i) for i in range(len(regions))]
        formats = [(one.dtype, one.shape) for one in regions]
        starts = [one.offset for one in regions]
        self._nbytes = layout.nbytes
        self._record = np.dtype(
            {"names": names, "formats": formats, "offsets": starts, "itemsize": layout.nbytes}
        )
        self._pick: Any = (
            operator.itemgetter(*names) if len(names) > 1 else lambda block: (block["0"],)
        )

    def arrays(self, block: Block) -> Arrays:
        """Return the arrays of a copied block. Cost: 5 us and the copy."""
        return list(self._pick(np.ndarray((), self._record, block[: self._nbytes].copy())))


class Unpacking:
    """Makes arrays of the batches in one reader's messages."""

    def __init__(self, form: BatchForm) -> None:
        self.form = form
        self._copier = Copier(form.layout)

    def arrays(self, lying: BatchBlock) -> Arrays:
        """Arrays of one batch.

        Copied if it is small or shares its frame, otherwise views of the frame.
        """
        copied = not lying.alone or self.form.nbytes < COPY_BELOW
        arrays = self._copier.arrays(lying.block) if copied else self.form.arrays(lying.block)
        return (
            arrays
            if lying.rows == self.form.batch_size
            else [array[: lying.rows] for array in arrays]
        )


@dataclass(slots=True, eq=False)
class SocketBatch:
    """A batch in a received frame, not unpacked."""

    unpacking: Unpacking
    lying: BatchBlock

    def arrays(self) -> Arrays:
        return self.unpacking.arrays(self.lying)
