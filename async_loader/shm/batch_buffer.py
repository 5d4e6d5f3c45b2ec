"""The memory of one batch. Allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.shm.slot_ring import Lease, SlotRing


@dataclass(slots=True, eq=False)
class BatchBuffer:
    """A slot, or one block of memory. Dropping the last reference to ``root``, or to a view of it, frees the slot.

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
