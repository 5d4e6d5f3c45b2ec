"""Slots of shared memory in the learner's process, which the feeder writes batches to.

::

    free ─give─▶ the feeder's ─take─▶ ReceivedBatch ─arrays─▶ lent until the last view dies ─▶ free
                                          └──── copied, if small or if slots are short ─────▶ free
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from async_loader import process_hooks
from async_loader.batch_layout import BatchLayout
from async_loader.feeder.memory_offer import Offer
from async_loader.schema import Schema
from async_loader.shm.slot_leases import COPY_BELOW, Lease, SlotRing

SPARE = 4
"""Batches in shared memory that user code can hold without a copy, unless a loader holds more."""


class ReaderSlots:
    """Memory for the batches of one opening of a reader.

    Thread rule: under the reader's lock, but for `lend`, which belongs to the learner's thread.

    Parameters
    ----------
    schema : Schema
        Of a batch's rows.
    rows : int
        Rows of a batch.
    ahead : int
        Batches that the feeder may write ahead.
    spare : int
        Batches that the learner may hold without being copied; small ones are always copied.

    Raises
    ------
    OutOfMemory
        If there is not enough memory.
    Unsupported
        If memory cannot be sealed.

    Attributes
    ----------
    copies : bool
        Batches are small: each is copied when it is taken, and its slot is `back`.
    kept : list of (int, Lease)
        All slots by number, if ``copies``: making a lease costs more than the copy.
    theirs : dict of Lease
        Slots that the feeder has.
    """

    def __init__(self, schema: Schema, rows: int, ahead: int, spare: int) -> None:
        self.layout = BatchLayout.contiguous(schema, rows)
        self.copies = self.layout.nbytes < COPY_BELOW
        spare = 0 if self.copies else spare
        self.ring = SlotRing(ahead + spare, self.layout.nbytes, spare)
        self.ring.segment.seal()
        self.theirs: dict[int, Lease] = {}
        self.kept = [leased for _ in range(ahead * self.copies) if (leased := self.ring.lease())]
        self.back = deque(slot for slot, _ in self.kept)
        retire_at_forks(self)

    def offer(self, endpoint: str, session: int, number: int) -> None:
        """Offer this memory to the feeder, for reader ``number``. Raises as `Offer.send`."""
        ring = self.ring
        offer = Offer(session, number, ring.count, ring.slot_bytes)
        offer.send(endpoint, ring.segment.fileno())

    def give(self) -> list[int]:
        """Return the free slots; they are the feeder's from here on."""
        given = []
        while leased := self.kept[self.back.popleft()] if self.back else self.ring.lease():
            slot, self.theirs[slot] = leased
            given.append(slot)
        return given

    def lend(self, slot: int) -> bool:
        """Return whether a slot can be lent.

        Slots that a fork has retired count as lent for ever.
        """
        return self.ring.lent + self.ring.retired < self.ring.spare and self.ring.lend(slot)

    def close(self) -> None:
        """Close the memory. Lent batches keep theirs."""
        self.theirs.clear()
        self.kept.clear()
        self.ring.segment.close()


_all: weakref.WeakSet[Any] = weakref.WeakSet()
retire_at_forks = _all.add


def _around_fork() -> None:
    """See NOTE [what a fork does to leases] in shm/slot_leases.py."""
    for one in list(_all):
        if one.ring is not None:
            one.ring.retire_leased()


process_hooks.at_fork(before=_around_fork, after_in_parent=_around_fork)
