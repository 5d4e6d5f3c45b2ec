"""Batches that do not travel: a learner on the server's host owns the memory, and the server gathers into it.

::

    learner                                        server
      │ OPEN_READER transport "shm"                  │
      │─────────────────────────────────────────────▶│ control
      │ offer: session, reader, slots, [memfd]       │
      │─────────────────────────────────────────────▶│ a unix socket: is it sealed? is it of that size?
      │◀──────────────────────────────────────── yes │
      │ PULL granted 4, returned 0 1 2 3 4 5         │
      │─────────────────────────────────────────────▶│ pull
      │◀─────────────── BATCH slots 0, 1             │ 16 bytes each; the rows lie in the slots

The memory has no name, so that nothing is left behind whoever dies; it goes with the last process that maps it. It is sealed
before it is sent: what the learner could cut short under the server's hands would kill the server.
"""

from __future__ import annotations

from async_loader.feeder.shared.batch_ring import BatchSlot, SharedBatchRing
from async_loader.feeder.shared.listener import Listener
from async_loader.feeder.shared.offer import Offer, Offering, offer_to

__all__ = ["BatchSlot", "Listener", "Offer", "Offering", "SharedBatchRing", "offer_to"]
