"""The batches of one reader and the credit for them, as arithmetic.

::

    BATCH ──receive──▶ waiting ──next──▶ the learner ──settle──▶ RETURN
                         └── one credit more for each ──▶ PULL
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.client.channel import Failure
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.slots import FilledSlot, ReaderSlots, SocketBatch, Unpacking
from async_loader.feeder.wire import (
    MOST_AHEAD,
    REDELIVERED,
    Batch,
    BatchForm,
    CloseReader,
    Message,
    Reader,
    SlotBatches,
    schema_of,
)
from async_loader.lifecycle import EventFd
from async_loader.schema import Schema

if TYPE_CHECKING:
    from async_loader.feeder.client.connection import Connection

AHEAD_BYTES, AHEAD_LEAST, AHEAD_MOST, AHEAD_WEIGHTED = 4 << 20, 4, 32, 8
"""Batches ahead by default: many small ones share a message. Fewer where batches have weights:
weights and priorities are those of the moment of the draw."""
Transport = Literal["auto", "shm", "tcp"]


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What the user wants of a reader.

    Attributes
    ----------
    prefetch : int | None
        Batches on their way or waiting here; 0: each is drawn when a thread waits for it.
        ``None``: `ahead_of` decides once the schema is known.
    transport : "auto" | "shm" | "tcp"
    planned : int
        Batches that a loader plans ahead of the learner.
    """

    prefetch: int | None
    transport: Transport = "tcp"
    planned: int = 0


@dataclass(slots=True, eq=False)
class Lease:
    """On batch ``number`` of an ``opening`` of a reader; ``server`` is the server it came from.

    ``handed_out``: user code may have seen the batch.
    """

    reader: ReaderBatches
    number: int
    opening: int
    server: int
    handed_out: bool = False


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """One batch, not unpacked. ``server`` says whose ids it has, see `Connection.servers`."""

    body: SocketBatch | FilledSlot
    lease: Lease | None
    server: int


class ReaderBatches:
    """What the learner is sent, has, and gives back. Under the lock, unless a method takes it.

    Parameters
    ----------
    port : Connection
    options : ReaderOptions

    Attributes
    ----------
    bell : EventFd | None
        Rung when something changes, while a thread waits on it. Set by `listen`.
    wait_s : float | None
        Of a reader for calls: how long the present one may wait.
    opening : int
        Openings so far: leases of earlier ones are void.
    server : int
        The one that it was opened at last, see `Connection.servers`.
    schema, leased, eta, transport
        As READER said. ``eta``: of sequences, the share of the largest error in a priority.
    slots : ReaderSlots | None
        Shared memory, if the feeder has taken it.
    ahead : int
        Batches that may be on their way or wait here.
    granted, told, received : int
        Batches of this opening that the learner may be sent, as the last PULL said, and that came.
    ended_after : int | None
        Batches before END.
    complaint : AsyncLoaderError | None
        The newest error after which the reader goes on, for the thread that waits.
    batches, redelivered : int
        Received so far, over all openings.
    leases : dict of Lease
        Of this opening, by number: batches that are here, or with the learner.
    settled : deque of Lease
        Batches that were used, which the feeder has to be told.
    """

    def __init__(self, port: Connection, options: ReaderOptions) -> None:
        self.port, self.options = port, options
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.bell: EventFd | None = None
        self.failure: Failure | None = None
        self.wait_s: float | None = None
        self.opening = self.server = 0
        self.schema: Schema | None = None
        self.leased = False
        self.eta: float | None = None
        self.transport: Literal["shm", "tcp"] | None = None
        self.slots: ReaderSlots | None = None
        self._unpacking: Unpacking | None = None
        self.ahead = options.prefetch or 0
        self.granted = self.told = self.received = 0
        self.ended_after: int | None = None
        self.waiting: deque[ReceivedBatch] = deque()
        self.complaint: AsyncLoaderError | OSError | None = None
        self.batches = self.redelivered = 0
        self.leases: dict[int, Lease] = {}
        self.settled: deque[Lease] = deque()

    @property
    def due(self) -> bool:
        """Whether a PULL is due.

        Credit goes out by halves of what may be ahead, as each PULL wakes two threads and a server.
        Less only if the feeder has nothing left to send, for want of credit or of slots.
        """
        slots, untold, ahead = self.slots, self.granted - self.told, self.ahead
        idle, free = self.told <= self.received, 0
        enough = 2 * untold >= ahead and untold > 0
        if slots is not None and not slots.copies:  # else slots go with the credit
            free, theirs = slots.free, slots.theirs
            enough |= 2 * free >= ahead >= 2 * theirs and free > 0
            idle |= not theirs
        return enough or ((untold > 0 or free > 0) and not self.waiting and idle)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, and everything received was taken."""
        after = self.ended_after
        return after is not None and not self.waiting and self.received >= after

    def next(self) -> ReceivedBatch | None:
        """Return the next received batch, and grant one credit.

        Also for batches from before a reopening, which `opened` has deducted.
        """
        if not self.waiting:
            return None
        body = self.waiting[0].body
        if isinstance(body, FilledSlot):
            body.copy()  # before it is taken: an interrupt leaves it here
        self.granted += self.ahead > 0
        return self.waiting.popleft()

    def listen(self, bell: EventFd | None) -> None:
        """A thread begins to wait, or waits no more: an earlier complaint is not for it."""
        with self.lock:
            self.bell, self.complaint = bell, None

    def complain(self, error: AsyncLoaderError) -> None:
        """Note an error, if a thread waits: the feeder also sends them to a learner that is busy.

        One that begins to wait later is sent another.
        """
        if self.bell is not None:
            self.complaint = error

    # -- leases ------------------------------------------------------------------------------------

    def holds(self, lease: Lease) -> bool:
        """Return whether a batch is still this learner's: the feeder has not taken it back.

        Batches of an earlier server are in no other table, so they stay.
        """
        return (
            lease.opening == self.opening
            or lease.server != self.server
            or self.ended_after is not None
        )

    def hand_out(self, lease: Lease) -> bool:
        """Note that user code has the batch from here on; return False if it was given back."""
        with self.lock:
            lease.handed_out = self.holds(lease)
            return lease.handed_out

    def settle(self, lease: Lease) -> None:
        """Note that a batch was used."""
        with self.lock:
            if lease.handed_out and self.leases.get(lease.number) is lease:
                del self.leases[lease.number]
                self.settled.append(lease)

    def take_settled(self) -> list[int]:
        """Return the numbers of used batches, once."""
        leases = [self.settled.popleft() for _ in range(len(self.settled))]
        return [one.number for one in leases if one.opening == self.opening]

    def give_back(self, used: bool) -> CloseReader:
        """Give back all leases, or all but those of batches that were handed out, if ``used``."""
        leases = self.leases
        seen = [] if used else [number for number, one in leases.items() if one.handed_out]
        unseen = [number for number, one in leases.items() if not one.handed_out]
        numbers = (*seen, *unseen)
        self.opening += 1  # so `holds` is false for all of them
        leases.clear()
        self.settled.clear()
        self.waiting.clear()
        return CloseReader(self.received, len(seen), numbers)

    # -- openings ----------------------------------------------------------------------------------

    def session_begins(self) -> None:
        """There is a new session: credit counts anew."""
        if self.ended_after is not None:  # batches before the END have come, or never will
            self.ended_after = self.received

    def asks(self) -> None:
        """An OPEN_READER is sent: drop batches that the server draws again."""
        self.server, self.opening = self.port.servers, self.opening + 1
        self.leases.clear()
        self.waiting = deque(
            one for one in self.waiting if one.lease is None or self.holds(one.lease)
        )

    def opened(self, body: Reader, batch_size: int) -> None:
        """Take the answer to OPEN_READER."""
        options = self.options
        schema = self.schema = schema_of(body.schema)
        self.leased, self.eta = body.leased, body.eta
        form = BatchForm.of(schema, batch_size)
        self._unpacking, nbytes, wished = Unpacking(form), form.nbytes, options.prefetch
        if wished is None:
            wished = ahead_of(schema, nbytes, options.planned)
        shared = body.transport == "shm"
        self.ahead = min(wished, MOST_AHEAD if shared else self.port.limits.ahead(nbytes))
        self.received = self.told = 0
        self.granted = max(0, self.ahead - len(self.waiting))

    def receive(self, message: Message, body: Batch | SlotBatches) -> None:
        """Take batches. Drop those that are here, and those of an earlier opening.

        Raises
        ------
        Malformed
        """
        first, unpacking = message.sequence, self._unpacking
        if first < self.received:
            return
        if isinstance(body, Batch):
            assert unpacking is not None
            found = unpacking.form.blocks(body)
            if first + len(found) <= self.granted:  # else of an earlier opening
                for i, block in enumerate(found):
                    self._add(first + i, SocketBatch(unpacking, block), message.flags)
        elif first + len(body.places) <= self.granted:
            if self.slots is None:
                raise Malformed("a batch came in shared memory, and none was offered")
            for i, place in enumerate(body.places):
                self._add(first + i, self.slots.take(place), place.flags)

    def _add(self, number: int, body: SocketBatch | FilledSlot, flags: int) -> None:
        self.received = number + 1
        self.batches += 1
        self.complaint = None
        self.redelivered += bool(flags & REDELIVERED)
        lease = None
        if self.leased:
            lease = self.leases[number] = Lease(self, number, self.opening, self.server)
        self.waiting.append(ReceivedBatch(body, lease, self.server))


def ahead_of(schema: Schema, batch_bytes: int, planned: int) -> int:
    """Return how many batches may be ahead by default."""
    weighted = any(one.name == "weight" for one in schema.fields)
    most = AHEAD_WEIGHTED if weighted else AHEAD_MOST
    return max(AHEAD_LEAST, min(most, AHEAD_BYTES // max(1, batch_bytes)), planned)
