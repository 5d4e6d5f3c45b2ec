"""The shared memory of a reader in its learner's process: slots, and the batches in them.

::

    free ─give─▶ the feeder's ─BATCH─▶ FilledSlot ─arrays─▶ lent until the last view dies ─▶ free
                                          └──── copied, if small or if slots are short ────▶ free
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Malformed
from async_loader.feeder.client.batch_copies import Arrays, Copier
from async_loader.feeder.shared import Offer
from async_loader.feeder.wire import InSlot
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.slot_ring import COPY_BELOW, Lease, SlotRing

SPARE = 4
"""Batches in shared memory that user code can hold without a copy, unless a loader holds more."""


class ReaderSlots:
    """Memory for the batches of one opening of a reader.

    Thread rule: `give`, `take` and `close` belong to the IO thread, `arrays` to the learner's;
    `free`, `take`, `give` and `done` are called under the reader's lock.

    Parameters
    ----------
    schema : Schema
        Of a batch's rows.
    rows : int
        Rows of a batch.
    ahead : int
        Batches that the feeder may write ahead.
    spare : int
        Batches that the learner may hold without being copied.

    Raises
    ------
    OutOfMemory
        If there is not enough memory.
    Unsupported
        If memory cannot be sealed.
    """

    def __init__(self, schema: Schema, rows: int, ahead: int, spare: int) -> None:
        self.layout = BatchLayout.contiguous(schema, rows)
        self._rows = rows
        self.copies = self.layout.nbytes < COPY_BELOW
        count = ahead + (0 if self.copies else spare)
        self._ring = SlotRing(count, self.layout.nbytes, spare)
        self._ring.segment.seal()
        self._theirs: dict[int, Lease] = {}
        self._roots: dict[int, Lease] = {}
        self._filled: set[int] = set()
        if self.copies:  # leased for good: every batch is copied out at once
            self._roots = dict(self._leased() for _ in range(count))
            self._copier = Copier(self.layout)
        _all.add(self)

    def _leased(self) -> tuple[int, Lease]:
        leased = self._ring.lease()
        assert leased is not None
        return leased

    def offer(self, session: int, number: int) -> Offer:
        """Return the offer of this memory."""
        return Offer(session, number, self._ring.count, self._ring.slot_bytes)

    def fileno(self) -> int:
        """Return the descriptor of the memory."""
        return self._ring.segment.fileno()

    @property
    def free(self) -> int:
        """Slots that can be given to the feeder."""
        if not self.copies:
            return self._ring.free
        return len(self._roots) - len(self._theirs) - len(self._filled)

    @property
    def theirs(self) -> int:
        """Slots that the feeder has."""
        return len(self._theirs)

    @property
    def worn(self) -> bool:
        """Whether forks have retired all slots that can be lent.

        If so, every batch is copied from now on.
        """
        return self._ring.retired >= max(1, self._ring.spare)

    def give(self) -> list[int]:
        """Return the free slots; they are the feeder's from here on."""
        given = []
        if self.copies:
            given = [one for one in self._roots if not (one in self._theirs or one in self._filled)]
            self._theirs.update((slot, self._roots[slot]) for slot in given)
        else:
            while (leased := self._ring.lease()) is not None:
                self._theirs[leased[0]] = leased[1]
                given.append(leased[0])
        return given

    def take(self, place: InSlot) -> FilledSlot:
        """Take back a filled slot. Raises Malformed if the feeder does not have it."""
        if not 1 <= place.rows <= self._rows:
            raise Malformed(
                f"a batch of {place.rows} rows came in shared memory, {self._rows} were asked for"
            )
        root = self._theirs.pop(place.slot, None)
        if root is None:
            raise Malformed(f"a batch came in slot {place.slot}, which the feeder was not given")
        if self.copies:
            self._filled.add(place.slot)
        return FilledSlot(self, place.slot, place.rows, root)

    def arrays(self, filled: FilledSlot) -> Arrays:
        """Return a slot's batch: views while slots can be lent, else copies. Cost: 6 us."""
        root, rows = filled.root, filled.rows
        if self.copies:
            arrays = self._copier.arrays(root)
        elif self._may_lend(filled.slot):
            arrays = self.layout.views(root)
            if rows == self._rows:
                filled.buffer = BatchBuffer(self._ring, filled.slot, root)
        else:
            arrays = self.layout.views(root[: self.layout.nbytes].copy())
        return arrays if rows == self._rows else [array[:rows] for array in arrays]

    def done(self, filled: FilledSlot) -> None:
        """Note that a slot's batch was read."""
        self._filled.discard(filled.slot)

    def _may_lend(self, slot: int) -> bool:
        """Return whether a slot can be lent.

        Slots that a fork has retired count as lent for ever.
        """
        return self._ring.lent + self._ring.retired < self._ring.spare and self._ring.lend(slot)

    def close(self) -> None:
        """Close the memory. Lent batches keep theirs."""
        self._theirs.clear()
        self._roots.clear()
        self._ring.segment.close()

    def retire_leased(self) -> None:
        """See NOTE [what a fork does to leases] in shm/slot_ring.py."""
        self._ring.retire_leased()


@dataclass(slots=True, eq=False)
class FilledSlot:
    """A batch in its slot.

    Attributes
    ----------
    slots : ReaderSlots
    slot, rows : int
    root : Lease
    buffer : BatchBuffer | None
        The slot, if a full batch was lent in it: what a loader copies to a device.
    """

    slots: ReaderSlots
    slot: int
    rows: int
    root: Lease
    buffer: BatchBuffer | None = None

    def arrays(self) -> Arrays:
        """Return the arrays."""
        return self.slots.arrays(self)


_all: weakref.WeakSet[ReaderSlots] = weakref.WeakSet()


def _around_fork() -> None:
    for one in list(_all):
        one.retire_leased()


os.register_at_fork(before=_around_fork, after_in_parent=_around_fork)
