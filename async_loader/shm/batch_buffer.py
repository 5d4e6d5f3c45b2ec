"""The memory of one batch, and the plans of sources whose batches lie in one piece of memory
already. Allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.shm.slot_leases import Lease, SlotRing
from async_loader.source import Ready

STAGED_BYTES = 64 << 10
"""Up to this size CUDA copies from any memory to a buffer of its own before the call returns, and
waits for nothing [1]_: page-locked memory has no use then.

.. [1] CUDA Runtime API, "API synchronization behavior", NVIDIA, 2025.
"""


@dataclass(slots=True, eq=False)
class BatchBuffer:
    """A slot, or one block of memory. Dropping the last reference to ``root``, or to a view of it,
    frees the slot.

    Attributes
    ----------
    ring : SlotRing | None
        ``None``: the block belongs to this batch alone.
    slot : int
    root : uint8 array
        The bytes; of a slot, the lease on it.
    """

    ring: SlotRing | None
    slot: int
    root: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadySlot(Ready):
    """A batch as it stands, in a slot: copied to a device from there, and on the CPU as any that is
    ``lent``.

    Attributes
    ----------
    buffer : BatchBuffer
    layout : BatchLayout
        Of the bytes in it; ``batch`` has views of the same, in the same structure.
    """

    buffer: BatchBuffer
    layout: BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBlock(Ready):
    """A batch of `STAGED_BYTES` at most as it stands, in a block of its own: copied to a device
    from there, and on the CPU as any that is ``lent``.

    Attributes
    ----------
    block : array of any shape and dtype
        The memory of all arrays of ``batch``.
    layout : BatchLayout
        Of the bytes in it; ``batch`` has views of the same, in the same structure.
    """

    block: npt.NDArray[Any]
    layout: BatchLayout

    @property
    def buffer(self) -> BatchBuffer:
        """The block's bytes."""
        block = self.block
        return BatchBuffer(None, -1, np.ndarray(block.nbytes, np.uint8, block))
