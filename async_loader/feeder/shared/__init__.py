"""Batches in shared memory: a learner on the server's host owns it, and the server writes into it.

::

    learner                                        server
      │ OPEN_READER transport "shm"                  │
      │─────────────────────────────────────────────▶│ control
      │ offer: session, reader, slots, [memfd]       │
      │─────────────────────────────────────────────▶│ a unix socket: size and seals?
      │◀──────────────────────────────────────── yes │
      │ PULL granted 4, returned 0 1 2 3 4 5         │
      │─────────────────────────────────────────────▶│ pull
      │◀─────────────── BATCH slots 0, 1             │ 16 bytes each; the rows are in the slots

The memory has no name, so that no process that dies leaves it behind: it is freed with the last
process that maps it. It is sealed before it is sent: a learner that shrinks it would kill the
server.
"""

from __future__ import annotations

from async_loader.feeder.shared.batch_ring import BatchSlot, SharedBatchRing
from async_loader.feeder.shared.listener import Listener
from async_loader.feeder.shared.offer import Offer, Offering, offer_to

__all__ = ["BatchSlot", "Listener", "Offer", "Offering", "SharedBatchRing", "offer_to"]
