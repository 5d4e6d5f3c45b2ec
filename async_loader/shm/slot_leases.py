"""A ring of batch slots in one segment, and the leases that return them.

A lease is a fresh array on the slot's bytes. Whatever is made of it (fields, tensors, tensors saved
for backward) keeps it alive, and when the last of them dies the slot is free again. Nothing is ever
released by hand, so nothing can be released too early, and a batch that is dropped half-way returns
its slot like any other. Takes no lock: a lease dies wherever the collector happens to run, also in
a thread that holds one of ours. What is called then is the ``append`` of a deque and no code in
Python, in which a signal could be handled: its exception would be swallowed, and the slot lost.

# NOTE [the slot that came back last comes next]
Its bytes are in a cache still. Batches of 14 MB that are written to six slots in turn take 1.3
times as long to make and to read as in two of them. (See also shared/batch_ring.py of the feeder.)

# NOTE [what a fork does to leases]
A forked child shares the slots' pages and holds copies of the parent's tensors. When it drops them
that is noted in its own copy of the ring, which nothing uses; and what it still reads must not be
overwritten by the parent, so the parent retires the slots that are lent at the moment of the fork.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import cast

import numpy as np
import numpy.typing as npt

from async_loader.shm.segment import Segment

_PAGE = 4096
COPY_BELOW = 64 << 10
"""Bytes below which copying a batch costs less than lending its slot."""

Lease = npt.NDArray[np.uint8]


def whole_pages(nbytes: int) -> int:
    """Round ``nbytes`` up to whole pages, the unit of page-locking; at least one page."""
    return -(-max(nbytes, 1) // _PAGE) * _PAGE


class _LeaseReturn(weakref.ref[Lease]):
    """A weak reference to a lease, with the number of the slot to return."""

    __slots__ = ("slot",)

    slot: int


class SlotRing:
    """``count`` slots of ``slot_bytes`` bytes.

    Parameters
    ----------
    count : int
    slot_bytes : int
        Rounded up to whole pages.
    spare : int
        Number of slots that may be lent to the consumer at once; the others are kept for batches in
        progress.
    commit : bool
        See `Segment.create`.

    Raises
    ------
    OutOfMemory
        If the segment would not fit.

    Attributes
    ----------
    memory : uint8 array
        All slots; readable after the segment was closed.
    """

    def __init__(self, count: int, slot_bytes: int, spare: int, *, commit: bool = True) -> None:
        self.count = count
        self.spare = spare
        self.slot_bytes = whole_pages(slot_bytes)
        self.segment = Segment.create(
            count * self.slot_bytes, f"{count} batch slots of {slot_bytes} bytes", commit=commit
        )
        self.memory = self.segment.bytes()
        self._free: deque[int] = deque(range(count))
        self._dead: deque[weakref.ref[Lease]] = deque()
        self._leases: dict[int, _LeaseReturn] = {}
        self._lent: dict[int, None] = {}
        self.retired = 0

    def lease(self) -> tuple[int, Lease] | None:
        """Return a free slot's number and its bytes, or ``None`` if all are leased."""
        self._take_back()
        try:
            slot = self._free.popleft()
        except IndexError:
            return None
        root = self.segment.bytes(slot * self.slot_bytes, self.slot_bytes)
        back = _LeaseReturn(root, self._dead.append)
        back.slot = slot
        self._leases[slot] = back
        return slot, root

    def _take_back(self) -> None:
        """Free the slots of leases that have died. Any thread."""
        while self._dead:
            try:
                back = cast(_LeaseReturn, self._dead.popleft())
            except IndexError:  # another thread took it
                return
            if self._leases.get(back.slot) is back:
                del self._leases[back.slot]
                self._lent.pop(back.slot, None)
                self._free.appendleft(back.slot)

    def lend(self, slot: int) -> bool:
        """Return True if the consumer may keep this slot.

        Otherwise copy the batch out and drop the lease.
        """
        if len(self._lent) >= self.spare:
            self._take_back()
        if len(self._lent) >= self.spare:
            return slot in self._lent
        self._lent[slot] = None
        return True

    def retire_leased(self) -> None:
        """Never reuse the slots that are lent now. See NOTE [what a fork does to leases]."""
        self._take_back()
        for slot in list(self._lent):
            if self._leases.pop(slot, None) is not None:
                self.retired += 1
            self._lent.pop(slot, None)

    @property
    def free(self) -> int:
        self._take_back()
        return len(self._free)

    @property
    def lent(self) -> int:
        self._take_back()
        return len(self._lent)

    @property
    def worn(self) -> bool:
        """Whether retired slots outnumber the spare ones, so that the batches under way would run
        short.
        """
        return self.retired > self.spare
