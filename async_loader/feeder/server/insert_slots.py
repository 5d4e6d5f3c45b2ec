"""The memory of one writer, in which the rows of its INSERTs lie, on the server's side."""

from __future__ import annotations

from async_loader.errors import Malformed
from async_loader.feeder.shared.offer import Offer
from async_loader.feeder.wire import Insert, RowLayout, SlotInsert
from async_loader.shm.segment import Segment


class InsertSlots:
    """Slots that the writer fills. It fills one again when the INSERT in it is acknowledged.

    Parameters
    ----------
    segment : Segment
        Closed with the slots. Rows that wait for their table keep the memory.
    offer : Offer
    """

    def __init__(self, segment: Segment, offer: Offer) -> None:
        self._segment, self._offer = segment, offer

    def insert(self, body: SlotInsert, layout: RowLayout) -> Insert:
        """Return the INSERT with its frames: the large ones as views of the slot.

        What is checked before it is used, small fields and bools, is copied: the writer's process
        could change it in between.

        Raises
        ------
        Malformed
            If there is no such slot, or the rows do not fit into one.
        """
        slots, slot_bytes = self._offer.slots, self._offer.slot_bytes
        if body.slot >= slots:
            raise Malformed(f"INSERT names slot {body.slot}, this writer has {slots}")
        places, nbytes = layout.slot_places(body.capacity)
        if nbytes > slot_bytes:
            raise Malformed(
                f"{body.capacity} rows take {nbytes} bytes, a slot of this writer has {slot_bytes}"
            )
        begin = body.slot * slot_bytes
        frames = [
            self._segment.view(begin + place, size)
            for place, size in zip(places, layout.sizes(body.rows), strict=True)
        ]
        frames[0] = memoryview(bytes(frames[0]))
        for frame, i in enumerate(layout.large, 1):
            if i in layout.bools:
                frames[frame] = memoryview(bytes(frames[frame]))
        return Insert(body.rows, frames)

    def close(self) -> None:
        """Unmap the memory, once no row in it waits. May be called again."""
        self._segment.close()
