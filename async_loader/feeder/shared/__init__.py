"""Rows in shared memory on one host: a client owns it. The server writes a learner's batches into
it, and reads an actor's rows from it. Weights are in memory of the server, which clients map.

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

    actor                                          server
      │ OPEN_WRITER                                  │
      │─────────────────────────────────────────────▶│ control
      │ offer: session, writer, slots, [memfd]       │
      │─────────────────────────────────────────────▶│ a unix socket
      │◀──────────────────────────────────────── yes │
      │ INSERT 0 in slot 3                           │ 8 bytes; the rows are in the slot
      │─────────────────────────────────────────────▶│ insert
      │◀────────────────────────────────────── ACK 1 │ slot 3 may be filled again

The memory has no name, so that no process that dies leaves it behind: it is freed with the last
process that maps it. It is sealed before it is sent: a client that shrinks it would kill the
server.
"""

from __future__ import annotations

from async_loader.feeder.shared.batch_ring import BatchSlot, SharedBatchRing
from async_loader.feeder.shared.listener import Listener
from async_loader.feeder.shared.offer import (
    ANSWER_S,
    SHARED_FROM,
    Offer,
    WeightsRequest,
    map_weights,
)

__all__ = [
    "ANSWER_S",
    "SHARED_FROM",
    "BatchSlot",
    "Listener",
    "Offer",
    "SharedBatchRing",
    "WeightsRequest",
    "map_weights",
]
