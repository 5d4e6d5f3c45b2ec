"""The slots of one reader's shared memory, on the server's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Malformed
from async_loader.feeder.shared.offer import Offer
from async_loader.schema import Schema
from async_loader.shm.segment import Segment

Arrays = list[npt.NDArray[Any]]


@dataclass(slots=True, eq=False)
class BatchSlot:
    """Memory for one batch.

    Attributes
    ----------
    slot, generation : int
        Its number in the reader's memory; in shared memory, how often it was taken.
    arrays : list of arrays [batch_size, *shape]
    target : object
        The arrays as a target for `SamplerSession.fill`, made by the first fill.
    """

    slot: int
    generation: int
    arrays: Arrays
    target: Any = None


class SharedBatchRing:
    """Slots that the learner has freed, each with the arrays of a batch.

    Parameters
    ----------
    segment : Segment
        Closed with the ring.
    offer : Offer
    schema : Schema
        Of a batch's rows.
    rows : int
        Of a batch.

    Raises
    ------
    Malformed
        If a batch does not fit into a slot.
    """

    def __init__(self, segment: Segment, offer: Offer, schema: Schema, rows: int) -> None:
        layout = BatchLayout.contiguous(schema, rows)
        if layout.nbytes > offer.slot_bytes:
            raise Malformed(
                f"a batch takes {layout.nbytes} bytes, a slot has {offer.slot_bytes}: offer larger "
                "ones"
            )
        self._segment = segment
        self._batch_slots = [
            BatchSlot(i, 0, layout.views(segment.bytes(i * offer.slot_bytes, offer.slot_bytes)))
            for i in range(offer.slots)
        ]
        self._free: deque[int] = deque()
        self._lent = set(range(offer.slots))

    def give_back(self, slots: Sequence[int]) -> None:
        """Free slots that the learner uses no more. The first one is taken next.

        Raises
        ------
        Malformed
            For a slot that does not exist, or is free already.
        """
        for slot in reversed(slots):
            if slot not in self._lent:
                raise Malformed(
                    f"slot {slot} was given back and is not lent: there are "
                    f"{len(self._batch_slots)}"
                )
            self._lent.remove(slot)
            self._free.appendleft(slot)  # see NOTE [the slot that came back last comes next]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> BatchSlot:
        """Take a free slot. There is one."""
        batch_slot = self._batch_slots[self._free.popleft()]
        self._lent.add(batch_slot.slot)
        batch_slot.generation = (batch_slot.generation + 1) & 0xFFFFFFFF
        return batch_slot

    def put_back(self, batch_slot: BatchSlot) -> None:
        """Free a slot that was taken and not used."""
        self._lent.remove(batch_slot.slot)
        self._free.appendleft(batch_slot.slot)

    def close(self) -> None:
        self._batch_slots.clear()
        self._free.clear()
        self._segment.close()
