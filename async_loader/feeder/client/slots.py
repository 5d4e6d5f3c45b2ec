"""Received batches: in frames of a socket, or in slots of shared memory in the learner's process.

::

    free ─give─▶ the feeder's ─BATCH─▶ FilledSlot ─arrays─▶ lent until the last view dies ─▶ free
                                          └──── copied, if small or if slots are short ────▶ free
"""

from __future__ import annotations

import operator
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Malformed
from async_loader.feeder.memory_offer import Offer
from async_loader.feeder.wire import BatchBlock, BatchForm, InSlot
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.slot_leases import COPY_BELOW, Lease, SlotRing

Arrays = list[npt.NDArray[Any]]
Block = npt.NDArray[np.uint8]
SPARE = 4
"""Batches in shared memory that user code can hold without a copy, unless a loader holds more."""


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

    def copy(self, block: Block) -> Block:
        """Copy a block."""
        return block[: self._nbytes].copy()

    def arrays(self, block: Block) -> Arrays:
        """Return the arrays of a copied block. Cost: 5 us."""
        return list(self._pick(np.ndarray((), self._record, block)))


class Unpacking:
    """Makes arrays of the batches in one reader's messages."""

    def __init__(self, form: BatchForm) -> None:
        self.form = form
        self._copier = Copier(form.layout)

    def arrays(self, lying: BatchBlock) -> Arrays:
        """Arrays of one batch.

        Copied if it is small or shares its frame, otherwise views of the frame.
        """
        copied, copier = not lying.alone or self.form.nbytes < COPY_BELOW, self._copier
        block = lying.block
        arrays = copier.arrays(copier.copy(block)) if copied else self.form.arrays(block)
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


class ReaderSlots:
    """Memory for the batches of one opening of a reader.

    Thread rule: `give`, `take` and `close` belong to the IO thread, under the reader's lock, as
    `free`; `arrays` to the learner's.

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
        self._filled: dict[int, FilledSlot] = {}
        self._roots: dict[int, Lease] = {}
        if self.copies:  # leased for good: every batch is copied out
            self._roots = dict(self._leased() for _ in range(count))
            self._copier = Copier(self.layout)
        _all.add(self)

    def _leased(self) -> tuple[int, Lease]:
        leased = self._ring.lease()
        assert leased is not None
        return leased

    def offer(self, endpoint: str, session: int, number: int) -> None:
        """Offer this memory to the feeder, for reader ``number``. Raises as `shared.request`."""
        ring = self._ring
        offer = Offer(session, number, ring.count, ring.slot_bytes)
        offer.send(endpoint, ring.segment.fileno())

    @property
    def free(self) -> int:
        """Slots that can be given to the feeder."""
        if not self.copies:
            return self._ring.free
        return sum(map(self._is_free, self._roots))

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
            given = [one for one in self._roots if self._is_free(one)]
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
        filled = FilledSlot(self, place.slot, place.rows, root)
        if self.copies:
            self._filled[place.slot] = filled
        return filled

    def _is_free(self, slot: int) -> bool:
        """Of a small batch: whether the slot is not the feeder's, and its batch was copied."""
        last = self._filled.get(slot)
        return slot not in self._theirs and (last is None or last.root is not self._roots[slot])

    def arrays(self, filled: FilledSlot) -> Arrays:
        """Return a slot's batch: views while slots can be lent, else copies. Cost: 6 us."""
        root, rows = filled.root, filled.rows
        if self.copies:  # `copy` was called, or the memory is closed and stays as it is
            arrays = self._copier.arrays(root)
        elif self._may_lend(filled.slot):
            arrays = self.layout.views(root)
            if rows == self._rows:
                filled.buffer = BatchBuffer(self._ring, filled.slot, root)
        else:
            arrays = self.layout.views(root[: self.layout.nbytes].copy())
        return arrays if rows == self._rows else [array[:rows] for array in arrays]

    def _may_lend(self, slot: int) -> bool:
        """Return whether a slot can be lent.

        Slots that a fork has retired count as lent for ever.
        """
        return self._ring.lent + self._ring.retired < self._ring.spare and self._ring.lend(slot)

    def close(self) -> None:
        """Close the memory. Lent batches keep theirs."""
        self._theirs.clear()
        self._filled.clear()
        self._roots.clear()
        self._ring.segment.close()

    def retire_leased(self) -> None:
        """See NOTE [what a fork does to leases] in shm/slot_leases.py."""
        self._ring.retire_leased()


@dataclass(slots=True, eq=False)
class FilledSlot:
    """A batch in its slot.

    Attributes
    ----------
    slots : ReaderSlots
    slot, rows : int
    root : Lease | Block
        Of a small batch a copy, once it is taken.
    buffer : BatchBuffer | None
        The slot, if a full batch was lent in it: what a loader copies to a device.
    """

    slots: ReaderSlots
    slot: int
    rows: int
    root: Lease | Block
    buffer: BatchBuffer | None = None

    def copy(self) -> None:
        """Copy a small batch, which frees its slot. Under the reader's lock."""
        if self.slots.copies:
            self.root = self.slots._copier.copy(self.root)

    def arrays(self) -> Arrays:
        """Return the arrays."""
        return self.slots.arrays(self)


_all: weakref.WeakSet[ReaderSlots] = weakref.WeakSet()


def _around_fork() -> None:
    for one in list(_all):
        one.retire_leased()


os.register_at_fork(before=_around_fork, after_in_parent=_around_fork)
