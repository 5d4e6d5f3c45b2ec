"""The memory of one batch, and the plan of a source whose batches lie in slots already.
Allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.batch_layout import BatchLayout
from async_loader.shm.slot_ring import Lease, SlotRing
from async_loader.source import Ready


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
