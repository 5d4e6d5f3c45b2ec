"""The slots of one reader, on either side. Which are free is known to the side that writes into them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from async_loader.errors import Malformed
from async_loader.feeder.shared.offer import Offer
from async_loader.layout import BatchLayout
from async_loader.schema import Schema
from async_loader.shm.segment import Segment

Arrays = list[npt.NDArray[Any]]


@dataclass(slots=True, eq=False)
class Spot:
    """Where one batch goes.

    Attributes
    ----------
    slot, generation : int
        Which it is of those of a reader, and of shared memory how often it was taken.
    arrays : list of arrays [batch_size, *shape]
    target : object
        What whoever fills it made of the arrays.
    """

    slot: int
    generation: int
    arrays: Arrays
    target: Any = None


class Shelf:
    """The server's side: slots that the learner has given free, each with the arrays of a batch in it.

    Parameters
    ----------
    segment : Segment
        Closed with the shelf.
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
            raise Malformed(f"a batch takes {layout.nbytes} bytes, a slot has {offer.slot_bytes}: offer larger ones")
        self._segment = segment
        self._spots = [
            Spot(i, 0, layout.views(segment.bytes(i * offer.slot_bytes, offer.slot_bytes))) for i in range(offer.slots)
        ]  # fmt: skip
        self._free: deque[int] = deque()
        self._lent = set(range(offer.slots))

    def give_back(self, slots: Iterable[int]) -> None:
        """The learner uses these no more.

        Raises
        ------
        Malformed
            For a slot that there is not, or that is free already.
        """
        for slot in slots:
            if slot not in self._lent:
                raise Malformed(f"slot {slot} was given back and is not lent: there are {len(self._spots)}")
            self._lent.remove(slot)
            self._free.append(slot)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> Spot:
        """A free slot. There is one."""
        spot = self._spots[self._free.popleft()]
        self._lent.add(spot.slot)
        spot.generation = (spot.generation + 1) & 0xFFFFFFFF
        return spot

    def put_back(self, spot: Spot) -> None:
        """It was taken, and was not used."""
        self._lent.remove(spot.slot)
        self._free.appendleft(spot.slot)

    def close(self) -> None:
        self._spots.clear()
        self._free.clear()
        self._segment.close()
