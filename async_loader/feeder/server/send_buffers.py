"""Memory for the batches of a reader over a socket, which is reused.

# NOTE [copied or lent]
Small batches share a block, of which a copy is sent: many of them make one message. Large batches
are a frame each, which is sent without a copy, some in one message, and refilled when the reader
has acknowledged its batch (PULL). A reader that acknowledges too early spoils its own batches only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.shared import BatchSlot
from async_loader.feeder.wire import BatchForm

LENT_FROM = 128 << 10
"""Bytes of a batch: copying more costs more than waiting for the reader."""
COPIED_TOGETHER, LENT_TOGETHER = 2 << 20, 6 << 20
"""Bytes of batches in one message.

A message costs both sides as much as some dozens of small batches.
"""


class CopiedSendBuffer:
    """A block for ``most`` batches of one message."""

    def __init__(self, form: BatchForm, most: int) -> None:
        self.most, self._nbytes, self._taken = most, form.nbytes, 0
        self._block = np.zeros(
            most * form.nbytes, np.uint8
        )  # zeros: gaps between arrays are sent too
        self._batch_slots = [
            BatchSlot(i, 0, form.layout.views(self._block[i * form.nbytes : (i + 1) * form.nbytes]))
            for i in range(most)
        ]

    def take(self) -> BatchSlot:
        """Return an empty slot. There is one while fewer than ``most`` wait to be sent."""
        self._taken += 1
        return self._batch_slots[self._taken - 1]

    def put_back(self, batch_slot: BatchSlot) -> None:
        """Give back the slot that was taken last, unused."""
        self._taken -= 1

    def frames(self, batch_slots: Sequence[BatchSlot]) -> list[Any]:
        """Return the frames of slots that were taken one after the other."""
        first, last = batch_slots[0].slot, batch_slots[-1].slot
        return [self._block[first * self._nbytes : (last + 1) * self._nbytes].tobytes()]

    def sent(self, first: int, batch_slots: Sequence[BatchSlot]) -> None:
        """Note that these slots were sent, as batch ``first`` and the following."""

    def clear(self) -> None:
        """Give back all slots that were taken and not sent."""
        self._taken = 0

    def received(self, count: int) -> None:
        """Refill batches before ``count``: the reader has them."""


class ZeroCopySendBuffer:
    """Frames, one for each batch; at most ``most_lent`` wait for an acknowledgement.

    A reader need not acknowledge. One that does never has more on their way: the PULL that grants
    batches says what was received.
    """

    def __init__(self, form: BatchForm, most: int, most_lent: int) -> None:
        self.most, self._form, self._most_lent = most, form, most_lent
        self._frames: dict[int, Any] = {}
        self._lent: deque[tuple[int, BatchSlot]] = deque()
        self._free: list[BatchSlot] = []
        self._taken: list[BatchSlot] = []
        self._made = 0

    def take(self) -> BatchSlot:
        self._taken.append(self._free.pop() if self._free else self._new())
        return self._taken[-1]

    def _new(self) -> BatchSlot:
        block: npt.NDArray[np.uint8] = np.zeros(self._form.nbytes, np.uint8)
        self._made += 1
        self._frames[self._made] = block
        return BatchSlot(self._made, 0, self._form.layout.views(block))

    def put_back(self, batch_slot: BatchSlot) -> None:
        self._free.append(self._taken.pop())

    def frames(self, batch_slots: Sequence[BatchSlot]) -> list[Any]:
        return [self._frames[batch_slot.slot] for batch_slot in batch_slots]

    def sent(self, first: int, batch_slots: Sequence[BatchSlot]) -> None:
        del self._taken[: len(batch_slots)]
        self._lent.extend(enumerate(batch_slots, first))
        while len(self._lent) > self._most_lent:
            _, forgotten = self._lent.popleft()
            del self._frames[forgotten.slot]

    def clear(self) -> None:
        self._free += self._taken
        self._taken.clear()

    def received(self, count: int) -> None:
        while self._lent and self._lent[0][0] < count:
            self._free.append(self._lent.popleft()[1])


SendBuffer = CopiedSendBuffer | ZeroCopySendBuffer
"""Where the next batches go."""


def send_buffer_for(form: BatchForm, together: int, ahead: int, message_bytes: int) -> SendBuffer:
    """Return a buffer for ``together`` batches in a message, ``ahead`` of them on their way."""
    lent = form.nbytes >= LENT_FROM
    most = max(
        1,
        min(
            together,
            ahead,
            min(LENT_TOGETHER if lent else COPIED_TOGETHER, message_bytes) // form.nbytes,
        ),
    )
    return ZeroCopySendBuffer(form, most, ahead) if lent else CopiedSendBuffer(form, most)
