"""Batches that stay on the CPU: their values are made in the thread that finished them, so that
`next` only takes them.

Cold caches make the making of six tensors cost twenty times what it costs in a loop, and a learner
that has just computed for ten milliseconds finds its caches cold. So all that can be made before
`next` is made before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.pipeline import codec
from async_loader.pipeline.batch import UNMADE, Batch, Outcome
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.slot_ring import COPY_BELOW

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
