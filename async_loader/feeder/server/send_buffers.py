"""Memory for the batches of a reader over a socket, which is reused.

# NOTE [copied or lent]
Small batches share a block, of which a copy is sent: many of them make one message. Large batches
are a frame each, which is sent without a copy, some in one message, and refilled when the reader
has acknowledged its batch (PULL). A reader that acknowledges too early spoils its own batches only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Malformed
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.shared import BatchSlot
from async_loader.feeder.wire import BatchForm, ErrorCode, Plane, encode, refuse

Column = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """A batch, ready to be sent.

    Attributes
    ----------
    columns : sequence of arrays [rows, *shape] | None
        One per field; of a table that leases its batches the last one is ``redelivered``. ``None``
        if the rows are in ``batch_slot`` only, because they cannot come back.
    again : bool
        Whether a learner may have had any of its rows before.
    batch_slot : BatchSlot | None
        Where its rows are sent from: shared memory, or the reader's send buffer.
    """

    rows: int
    columns: Sequence[Column] | None = None
    again: bool = False
    batch_slot: BatchSlot | None = None

    @classmethod
    def of(cls, columns: Sequence[Column]) -> OutgoingBatch:
        """Return a batch of a table that leases its batches."""
        return cls(len(columns[-1]), columns, bool(columns[-1].any()))

    @classmethod
    def joined(cls, parts: Sequence[OutgoingBatch]) -> OutgoingBatch:
        """Join batches of the same schema."""
        if len(parts) == 1:
            return parts[0]
        return cls.of(
            [np.concatenate(pieces) for pieces in zip(*(one._own for one in parts), strict=True)]
        )

    def cut(self, rows: int) -> tuple[OutgoingBatch, OutgoingBatch]:
        """Return the first ``rows`` rows, and the others."""
        first, rest = (
            [column[part].copy() for column in self._own]
            for part in (slice(rows), slice(rows, None))
        )
        return OutgoingBatch.of(first), OutgoingBatch.of(rest)

    def without(self, rows: npt.NDArray[np.bool_]) -> OutgoingBatch:
        """Return the other rows."""
        return OutgoingBatch.of([column[~rows] for column in self._own])

    def lie(self, batch_slot: BatchSlot) -> None:
        """Copy the rows into a slot."""
        for array, column in zip(batch_slot.arrays, self._own, strict=True):
            array[: self.rows] = column
        self.batch_slot = batch_slot

    def mark_redelivered(self) -> None:
        """Mark all rows: a learner may have had them before."""
        self.again = True
        self.columns = [*self._own[:-1], np.ones(self.rows, np.bool_)]

    @property
    def _own(self) -> Sequence[Column]:
        assert self.columns is not None
        return self.columns


class RequeuedRows:
    """Rows that were sent and not used, by schema, in the order of their return."""

    def __init__(self) -> None:
        self._outgoing_batches: dict[int, deque[OutgoingBatch]] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(
            one.rows
            for outgoing_batches in self._outgoing_batches.values()
            for one in outgoing_batches
        )

    def put(self, schema: int, outgoing_batch: OutgoingBatch, seen: bool = True) -> None:
        """Append a returned batch. ``seen``: a learner may have had its rows; they are marked."""
        outgoing_batch.batch_slot = None
        if seen:
            outgoing_batch.mark_redelivered()
        self._outgoing_batches.setdefault(schema, deque()).append(outgoing_batch)

    def put_back(self, schema: int, outgoing_batch: OutgoingBatch) -> None:
        """Put a batch back in front: it was not sent."""
        outgoing_batch.batch_slot = None
        self._outgoing_batches.setdefault(schema, deque()).appendleft(outgoing_batch)

    def take(self, schema: int, most: int) -> OutgoingBatch | None:
        """Take up to ``most`` rows, oldest first."""
        outgoing_batches, parts, rows = self._outgoing_batches.get(schema), [], 0
        while outgoing_batches and rows < most:
            one = outgoing_batches.popleft()
            if rows + one.rows > most:
                one, rest = one.cut(most - rows)
                outgoing_batches.appendleft(rest)
            parts.append(one)
            rows += one.rows
        if outgoing_batches is not None and not outgoing_batches:
            del self._outgoing_batches[schema]
        return OutgoingBatch.joined(parts) if parts else None


PATIENCE = 16
"""Messages that cannot be read, or are of no session, before the connection is ended."""
_TURN = 16
"""Messages of one connection before the others have their turn."""
_STRANGERS_COST, _MESSAGE_COST = 2048, 8
"""In frames: what those without a session may cost in one `receive`, of which each message costs
some by itself. See NOTE [strangers]."""


class MessageQueues:
    """The connections with messages, of each plane.

    Attributes
    ----------
    known, strangers : dict of Plane to deque of PeerConnection
        With a session, and without.
    held : set of Plane
        Planes whose messages are not taken yet.
    """

    def __init__(self) -> None:
        self.known: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}
        self.strangers: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}
        self.held = {Plane.INSERT, Plane.PULL}
        self._held: dict[PeerConnection, int] = {}  # bytes of strangers
        self._held_bytes = 0

    @property
    def backlog(self) -> bool:
        """Whether there is a message that may be taken."""
        known, strangers, held = self.known, self.strangers, self.held
        return any((known[one] or strangers[one]) and one not in held for one in known)

    def add(self, link: PeerConnection) -> None:
        """Append a connection that has messages to the queue of its plane."""
        link.listed = True
        (self.known if link.known else self.strangers)[link.plane].append(link)

    def receive(
        self, plane: Plane, most: int, settle: Callable[[PeerConnection], None]
    ) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Yield up to ``most`` messages; call ``settle`` after each turn of a connection."""
        known, strangers = self.known[plane], self.strangers[plane]
        left = _STRANGERS_COST
        while known or (strangers and left > 0):
            for queue in (known, strangers):
                if not queue or (queue is strangers and left <= 0):
                    continue
                if most <= 0:
                    return
                link = queue.popleft()
                messages = link.connection.messages
                left -= (
                    0
                    if link.known
                    else _MESSAGE_COST + link.turn_frames * link.connection.cut_short
                )
                try:
                    while messages and link.turn < _TURN and most > 0:
                        frames, nbytes = messages.popleft()
                        link.connection.held_bytes -= nbytes
                        link.turn += 1
                        most -= 1
                        left -= 0 if link.known else _MESSAGE_COST + len(frames)
                        yield link, frames
                        if link.refusals >= PATIENCE or (left <= 0 and not link.known):
                            break
                finally:
                    settle(link)

    def weigh(self, link: PeerConnection, most: int) -> list[PeerConnection]:
        """Note what a connection holds, if it is a stranger.

        While strangers hold more than ``most``, the messages of the one that holds most are
        dropped. Return these connections.
        """
        held = 0 if link.known else link.connection.memory
        self._held_bytes += held - self._held.pop(link, 0)
        if held:
            self._held[link] = held
        largest = []
        while self._held_bytes > most:
            largest.append(max(self._held, key=self._held.__getitem__))
            self._held_bytes -= self._held.pop(largest[-1])
            largest[-1].forget()
        return largest


def too_much(most: int) -> list[Any]:
    """Return the message to a stranger that is refused."""
    text = f"clients that have no session yet hold {most} bytes here, which is the limit"
    refusal = refuse(Malformed(f"{text}: say HELLO first", ErrorCode.LIMIT))
    assert refusal is not None
    return encode(refusal)


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
