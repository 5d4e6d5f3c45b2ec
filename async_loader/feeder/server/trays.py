"""Memory for the batches of a reader that go over a socket, used again and again. Draws nothing, sends nothing.

NOTE [copied or lent]. Small batches share a block, of which ZeroMQ gets a copy: many of them make one message. Large ones are
each a frame of ZeroMQ's own, which is sent as it lies, and filled again when the reader has said that its batch came (PULL).
A reader that says so too early spoils its own batches, nobody else's. Wrapping memory of ours instead would have pyzmq
tell us what was sent, through a thread and sockets of its own: twice the cost of everything else about a batch of 1 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zmq

from async_loader.feeder.shared import Spot
from async_loader.feeder.wire import BatchForm

LENT_FROM = 128 << 10
"""Bytes of a batch: a copy of it costs more than waiting for the reader's word."""
TOGETHER_BYTES = 2 << 20
"""Of small batches in one message."""


class Tray(Protocol):
    """Where the next batches go.

    Attributes
    ----------
    most : int
        Batches that one message holds.
    """

    most: int

    def take(self) -> Spot:
        """An empty place. There is one while fewer than ``most`` wait to be sent."""

    def frame(self, spots: Sequence[Spot]) -> Any:
        """What to send: places that were taken one after the other."""

    def sent(self, first: int, spots: Sequence[Spot]) -> None:
        """These went out, as batch ``first`` and those after it."""

    def clear(self) -> None:
        """What was taken and not sent is of no use any more."""

    def received(self, count: int) -> None:
        """The reader has the batches before this one."""


def tray_for(form: BatchForm, together: int, ahead: int, message_bytes: int) -> Tray:
    """For up to ``together`` batches in a message, ``ahead`` on their way."""
    if form.nbytes >= LENT_FROM:
        return Lent(form, 2 * ahead)
    return Copied(form, max(1, min(together, min(TOGETHER_BYTES, message_bytes) // form.nbytes)))


class Copied:
    """A block for ``most`` batches."""

    def __init__(self, form: BatchForm, most: int) -> None:
        self.most, self._nbytes, self._taken = most, form.nbytes, 0
        self._block = np.zeros(most * form.nbytes, np.uint8)  # zeros: what lies between arrays is sent too
        self._spots = [
            Spot(i, 0, form.layout.views(self._block[i * form.nbytes : (i + 1) * form.nbytes])) for i in range(most)
        ]  # fmt: skip

    def take(self) -> Spot:
        self._taken += 1
        return self._spots[self._taken - 1]

    def frame(self, spots: Sequence[Spot]) -> Any:
        first, last = spots[0].slot, spots[-1].slot
        return zmq.Frame(self._block[first * self._nbytes : (last + 1) * self._nbytes], copy=True)

    def sent(self, first: int, spots: Sequence[Spot]) -> None:
        pass

    def clear(self) -> None:
        self._taken = 0

    def received(self, count: int) -> None:
        pass


class Lent:
    """Frames, one for each batch. No more than ``most_lent`` are waited for: a reader need not say what it received."""

    most = 1

    def __init__(self, form: BatchForm, most_lent: int) -> None:
        self._form, self._most_lent = form, most_lent
        self._frames: dict[int, Any] = {}
        self._lent: deque[tuple[int, Spot]] = deque()
        self._free: list[Spot] = []
        self._taken: list[Spot] = []
        self._made = 0

    def take(self) -> Spot:
        self._taken.append(self._free.pop() if self._free else self._new())
        return self._taken[-1]

    def _new(self) -> Spot:
        frame: Any = zmq.Frame(bytes(self._form.nbytes), copy=True)
        block: npt.NDArray[np.uint8] = np.frombuffer(memoryview(frame), np.uint8)
        self._made += 1
        self._frames[self._made] = frame
        return Spot(self._made, 0, self._form.layout.views(block))

    def frame(self, spots: Sequence[Spot]) -> Any:
        return self._frames[spots[0].slot]

    def sent(self, first: int, spots: Sequence[Spot]) -> None:
        self._taken.clear()
        self._lent.append((first, spots[0]))
        if len(self._lent) > self._most_lent:
            _, forgotten = self._lent.popleft()
            del self._frames[forgotten.slot]

    def clear(self) -> None:
        self._free += self._taken
        self._taken.clear()

    def received(self, count: int) -> None:
        while self._lent and self._lent[0][0] < count:
            self._free.append(self._lent.popleft()[1])
