"""Where the next batch is written.

Holds the slot ring and replaces it when a batch outgrows it; writes nothing.
"""

from __future__ import annotations

import threading

import numpy as np

from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.limits import human
from async_loader.shm.slot_ring import COPY_BELOW, SlotRing, whole_pages


class SlotAllocator:
    """Hands out memory for batches; any thread.

    Parameters
    ----------
    prefetch : int
        Batches under way at most: that many slots are never lent.
    spare : int
        Batches the consumer may hold without being copied.
    slot_bytes : int | None
        Fixed size of a slot; ``None`` fits it to the batches.
    always_slots : bool
        Use slots for small batches too: they will be page-locked for a device.
    """

    def __init__(
        self, prefetch: int, spare: int, slot_bytes: int | None, *, always_slots: bool
    ) -> None:
        self._count = prefetch + spare
        self._spare = spare
        self._slot_bytes = None if slot_bytes is None else whole_pages(slot_bytes)
        self._always_slots = always_slots
        self._ring: SlotRing | None = None
        self._lock = threading.Lock()
        self._known: tuple[Schema, int, BatchLayout] | None = None

    @property
    def ring(self) -> SlotRing | None:
        """The ring in use; ``None`` before the first batch that needs one."""
        return self._ring

    def layout(self, schema: Schema, rows: int) -> BatchLayout:
        """How ``rows`` rows of ``schema`` are laid out. The last answer is remembered."""
        known = self._known
        if known is not None and known[1] == rows and (known[0] is schema or known[0] == schema):
            return known[2]
        layout = BatchLayout.contiguous(schema, rows)
        self._known = (schema, rows, layout)
        return layout

    def buffer_here(self, nbytes: int) -> BatchBuffer:
        """Memory that this process fills: a slot, or a block for a small batch or when slots are
        short.
        """
        if nbytes >= COPY_BELOW or self._always_slots:
            buffer = self.shared_slot(nbytes)
            if buffer is not None:
                return buffer
        return BatchBuffer(None, -1, np.empty(nbytes, np.uint8))

    def shared_slot(self, nbytes: int) -> BatchBuffer | None:
        """A slot that any process can fill; ``None`` when none is free.

        Raises
        ------
        OutOfMemory, ConfigError
            When slots of that size cannot be had.
        """
        with self._lock:
            ring = self._fitting(nbytes)
            lease = ring.lease()
        return None if lease is None else BatchBuffer(ring, *lease)

    def spare_slot(self) -> BatchBuffer | None:
        """A slot of the size that slots have now, for a batch whose layout is not known yet."""
        ring = self._ring
        return None if ring is None else self.shared_slot(ring.slot_bytes)

    def reserve(self, nbytes: int) -> None:
        """Make sure that slots hold ``nbytes``."""
        with self._lock:
            self._fitting(nbytes)

    def _fitting(self, nbytes: int) -> SlotRing:
        if self._slot_bytes is not None and nbytes > self._slot_bytes:
            raise ConfigError(
                f"a batch needs {human(nbytes)}, a slot holds {human(self._slot_bytes)}: raise "
                "slot_bytes"
            )
        ring = self._ring
        if ring is None or ring.slot_bytes < nbytes or ring.worn:
            # The old ring lives on in the leases on it, and goes with the last of them.
            size = max(nbytes, self._slot_bytes or 0, ring.slot_bytes if ring is not None else 0)
            ring = self._ring = SlotRing(self._count, size, self._spare)
        return ring

    def release(self) -> None:
        """Let go of the ring: its pages are given back with the last batch that lies in it."""
        with self._lock:
            self._ring = None

    def retire_leased(self) -> None:
        """After a fork: never write again where the child may still read."""
        if self._ring is not None:
            self._ring.retire_leased()
