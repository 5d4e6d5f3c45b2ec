"""Where the next batch is written.

Holds the slot ring and replaces it when a batch outgrows it; writes nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError
from async_loader.pipeline import codec
from async_loader.pipeline.batch import UNMADE, Batch, Outcome
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.schema import Schema
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.limits import human
from async_loader.shm.slot_leases import COPY_BELOW, SlotRing, whole_pages

if TYPE_CHECKING:
    from typing_extensions import Buffer


class HostOutput:
    """`prepare` belongs to the threads that finish batches, `hand_out` to the consumer's.

    Parameters
    ----------
    to_tensors : bool
        Arrays become tensors. Otherwise trees are handed out as they are.
    keep_slots : bool
        A device follows, which copies from slots: batches stay where they lie.

    Attributes
    ----------
    copied_small, copied_short : int
        Batches copied out of their slots because they were small, or because slots were short.
    """

    def __init__(self, *, to_tensors: bool, keep_slots: bool) -> None:
        self.copied_small = 0
        self.copied_short = 0
        self._to_tensors = to_tensors
        self.keep_slots = keep_slots

    def prepare(self, outcome: Outcome) -> Outcome:
        """Make the value of a batch; a small one leaves its slot first."""
        if type(outcome) is Batch and not self.keep_slots:
            buffer = outcome.buffer
            if buffer is not None and buffer.ring is not None and _nbytes(outcome) < COPY_BELOW:
                self.copied_small += 1
                self._copy_out(outcome)
            outcome.value = self._value(outcome)
        return outcome

    def hand_out(self, batch: Batch) -> Any:
        """The value, on its slot while slots may be lent."""
        buffer = batch.buffer
        if buffer is not None and buffer.ring is not None and not buffer.ring.lend(buffer.slot):
            self.copied_short += 1
            batch.value = UNMADE
            self._copy_out(batch)
        if batch.value is UNMADE:
            batch.value = self._value(batch)
        return batch.value

    def unpack(
        self, head: Buffer, buffer: BatchBuffer, table: tuple[tuple[int, int], ...]
    ) -> Batch:
        """The batch that a worker pickled into a slot; a small one leaves the slot here."""
        if not self.keep_slots and sum(nbytes for _, nbytes in table) < COPY_BELOW:
            self.copied_small += 1
            return Batch(tree=_decode_copy(head, buffer.root, table))
        return Batch(
            buffer,
            tree=codec.decode(head, [buffer.root[o : o + n] for o, n in table]),
            packed=(head, table),
        )

    def _copy_out(self, batch: Batch) -> None:
        """Copy a batch out of its slot, which is free once the batch has let go of it."""
        buffer = batch.buffer
        assert buffer is not None
        if batch.layout is not None:
            batch.buffer = BatchBuffer(None, -1, buffer.root[: batch.layout.nbytes].copy())
            return
        if batch.packed is not None:
            batch.tree = _decode_copy(batch.packed[0], buffer.root, batch.packed[1])
        else:
            batch.tree = tree.transform(batch.tree, tensors.copied)
        batch.buffer = batch.packed = None

    def _value(self, batch: Batch) -> Any:
        layout, buffer = batch.layout, batch.buffer
        if layout is None or buffer is None:
            if not self._to_tensors:
                return batch.tree
            if type(batch.tree) in (dict, tree.Fields):
                return tensors.of_columns(batch.tree, is_ignored)
            return tree.transform(batch.tree, tensors.as_tensor, leave=is_ignored)
        return layout.rebuild([tensors.to_tensor(view) for view in layout.views(buffer.root)])


def _nbytes(batch: Batch) -> int:
    if batch.layout is not None:
        return batch.layout.nbytes
    if batch.packed is not None:
        return sum(nbytes for _, nbytes in batch.packed[1])
    return 0 if batch.buffer is None else len(batch.buffer.root)


def _decode_copy(
    head: Buffer, root: npt.NDArray[np.uint8], table: tuple[tuple[int, int], ...]
) -> Any:
    """The batch on memory of its own: one block for all of its arrays, in the order of the slot."""
    if not table:
        return codec.decode(head)
    start, end = min(o for o, _ in table), max(o + n for o, n in table)
    block = np.empty(end - start, np.uint8)
    block[:] = root[start:end]
    return codec.decode(head, [block[o - start : o - start + n] for o, n in table])


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
