"""Outcomes as batches of tensors, made ready in the thread that finished them: `next` only has to take them.

Cold caches make the making of six tensors cost twenty times what it costs in a loop, and a learner that has just
computed for ten milliseconds finds its caches cold. So what can be done before it asks is done before it asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.pipeline.batch import BatchBuffer, HeapBatch, Outcome, SlotBatch
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.pipeline.batches.slot_allocator import COPY_BELOW


class TensorConverter:
    """`prepare` belongs to the threads that finish batches, `hand_out` to the consumer's.

    Attributes
    ----------
    copied_small, copied_short : int
        Batches copied out of their slots because they were small, or because slots were short.
    """

    def __init__(self) -> None:
        self.copied_small = 0
        self.copied_short = 0

    def prepare(self, outcome: Outcome) -> Outcome:
        """The same outcome with its tensors made; a small batch leaves its slot at once."""
        if isinstance(outcome, SlotBatch | HeapBatch):
            place = outcome.place
            if place is not None and place.ring is not None and place.layout.nbytes < COPY_BELOW:
                self.copied_small += 1
                self._move(outcome)
            outcome.batch = self._tensors(outcome)
        return outcome

    def hand_out(self, outcome: SlotBatch | HeapBatch) -> Any:
        """The batch, on its slot while slots may be lent. Safe to repeat."""
        place = outcome.place
        if place is not None and place.ring is not None and not place.ring.lend(place.slot):
            self.copied_short += 1
            outcome.batch = None
            self._move(outcome)
        if outcome.batch is None:  # here, or by a call that a signal interrupted
            outcome.batch = self._tensors(outcome)
        return outcome.batch

    def _move(self, outcome: SlotBatch | HeapBatch) -> None:
        """Copy a batch out of its slot, which is free when the outcome lets go of it."""
        if isinstance(outcome, HeapBatch):
            outcome.tree = tree.transform(outcome.tree, _copied)
            outcome.place = None
        else:
            place = outcome.place
            outcome.place = BatchBuffer(None, -1, place.root[: place.layout.nbytes].copy(), place.layout)

    def _tensors(self, outcome: SlotBatch | HeapBatch) -> Any:
        if isinstance(outcome, HeapBatch):
            return tree.transform(outcome.tree, tensors.as_tensor, leave=is_ignored)
        layout = outcome.place.layout
        return layout.rebuild([tensors.to_tensor(view) for view in layout.views(outcome.place.root)])


Prepare = Callable[[Outcome], Outcome]


def as_it_is(outcome: Outcome) -> Outcome:
    """What an accelerator needs before its streamer has had it: nothing."""
    return outcome


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if tensors.is_tensor(value) else value
