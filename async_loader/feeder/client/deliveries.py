"""The batches of one reader and the credit for them, as arithmetic. Called under the reader's lock.

::

    BATCH ──receive──▶ inbox ──next──▶ the learner ──settle──▶ RETURN
                         └── one credit more for each ──▶ PULL
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from async_loader.errors import AsyncLoaderError, Malformed
from async_loader.feeder.client.batch_copies import SocketBatch, Unpacking
from async_loader.feeder.client.offered_memory import OfferedMemory
from async_loader.feeder.client.reader_state import (
    LATER_S,
    Credit,
    Opening,
    ReaderOptions,
    TotalsNews,
    ahead_of,
)
from async_loader.feeder.client.slots import FilledSlot
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


@dataclass(slots=True, eq=False)
class Lease:
    """On batch ``number`` of an ``opening`` of a reader; ``server`` is the server it came from.

    ``handed_out``: user code may have seen the batch.
    """

    deliveries: Deliveries
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
    begun: bool = False


@dataclass(slots=True)
class Inbox:
    """What the learner's thread takes.

    Attributes
    ----------
    waiting : deque of ReceivedBatch
    complaint : AsyncLoaderError | None
        The newest error after which the reader goes on, for the thread that waits.
    batches, redelivered : int
        Received so far, over all openings.
    """

    waiting: deque[ReceivedBatch] = field(default_factory=deque)
    complaint: AsyncLoaderError | OSError | None = None
    batches: int = 0
    redelivered: int = 0


@dataclass(slots=True)
class Returns:
    """What the feeder has to be told of leases.

    Attributes
    ----------
    settled : deque of Lease
        Batches that were used.
    dropped : bool
        The source was garbage-collected: close the reader.
    parting : CloseReader
    """

    settled: deque[Lease] = field(default_factory=deque)
    dropped: bool = False
    parting: CloseReader = field(default_factory=CloseReader)


class Deliveries:
    """What the learner is sent, has, and gives back.

    Parameters
    ----------
    options : ReaderOptions
    memory : OfferedMemory
    lock : Lock

    Attributes
    ----------
    leases : dict of Lease
        Of this opening, by number: batches that are here, or with the learner.
    bell : EventFd | None
        Rung when something changes, while a thread waits on it. Set by `listen`.
    """

    def __init__(self, options: ReaderOptions, memory: OfferedMemory, lock: threading.Lock) -> None:
        self._options, self._memory, self._lock = options, memory, lock
        self.leases: dict[int, Lease] = {}
        self.bell: EventFd | None = None
        self.opening = Opening()
        self.credit = Credit(ahead=options.prefetch or 0)
        self.inbox = Inbox()
        self.returns = Returns()
        self.totals = TotalsNews()

    @property
    def due(self) -> bool:
        """Whether a PULL is due.

        Credit goes out by halves of what may be ahead, as each PULL wakes two threads and a server.
        Less only if the feeder has nothing left to send, for want of credit or of slots.
        """
        credit, slots = self.credit, self._memory.slots
        untold, ahead, waiting = credit.granted - credit.told, credit.ahead, self.inbox.waiting
        if slots is None:
            return untold > 0 and (
                2 * untold >= ahead or (credit.told <= credit.received and not waiting)
            )
        free, theirs = slots.free, slots.theirs
        if (2 * untold >= ahead and untold) or (2 * free >= ahead >= 2 * theirs and free):
            return True
        idle = credit.told <= credit.received or not theirs
        return (untold > 0 or free > 0) and not waiting and idle

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, and everything received was taken."""
        credit = self.credit
        return (
            credit.ended_after is not None
            and not self.inbox.waiting
            and credit.received >= credit.ended_after
        )

    def next(self) -> ReceivedBatch | None:
        """Return the next received batch; `taken` has to follow.

        A batch whose call failed or was interrupted in between is not delivered: it goes back with
        the reader, if it is leased.
        """
        waiting = self.inbox.waiting
        while waiting and waiting[0].begun:
            self.taken(waiting[0])
        if not waiting:
            return None
        waiting[0].begun = True
        return waiting[0]

    def taken(self, received: ReceivedBatch) -> None:
        """Pop a batch whose arrays the learner has, and grant one credit.

        Also for batches from before a reopening, which `opened` has deducted.
        """
        waiting, body = self.inbox.waiting, received.body
        if isinstance(body, FilledSlot):
            body.slots.done(body)
        if waiting and waiting[0] is received:
            self.credit.granted += self.credit.ahead > 0
            waiting.popleft()

    def listen(self, bell: EventFd | None) -> None:
        """A thread begins to wait, or waits no more: an earlier complaint is not for it."""
        self.bell, self.inbox.complaint = bell, None

    def complain(self, error: AsyncLoaderError) -> None:
        """Note an error, if a thread waits: the feeder also sends them to a learner that is busy.

        One that begins to wait later is sent another.
        """
        if self.bell is not None:
            self.inbox.complaint = error

    def holds(self, lease: Lease) -> bool:
        """Return whether a batch is still this learner's: the feeder has not taken it back.

        Batches of an earlier server are in no other table, so they stay.
        """
        opening = self.opening
        return (
            lease.opening == opening.number
            or lease.server != opening.server
            or self.credit.ended_after is not None
        )

    def hand_out(self, lease: Lease) -> bool:
        """Note that user code has the batch from here on; return False if it was given back."""
        with self._lock:
            lease.handed_out = self.holds(lease)
            return lease.handed_out

    def settle(self, lease: Lease) -> None:
        """Note that a batch was used."""
        with self._lock:
            if lease.handed_out and self.leases.get(lease.number) is lease:
                del self.leases[lease.number]
                self.returns.settled.append(lease)

    @property
    def owes(self) -> bool:
        """Whether the feeder has to be told of used batches."""
        return bool(self.returns.settled)

    def close(self, used: bool) -> bool:
        """Give back all leases, or all but those of batches that were handed out, if ``used``.

        Return whether the END has come.
        """
        opening, returns, leases = self.opening, self.returns, self.leases
        seen = [] if used else [number for number, one in leases.items() if one.handed_out]
        unseen = [number for number, one in leases.items() if not one.handed_out]
        numbers = np.array([*seen, *unseen], np.uint64)
        returns.parting = CloseReader(self.credit.received, len(seen), numbers)
        opening.number += 1  # so `holds` is false for all of them
        leases.clear()
        returns.settled.clear()
        self.inbox.waiting.clear()
        return self.credit.ended_after is not None

    def begin(self) -> None:
        """There is a new session: credit counts anew."""
        credit = self.credit
        self.opening.barred = credit.remind_at = None
        self.totals.begin()
        if credit.ended_after is not None:  # batches before the END have come, or never will
            credit.ended_after = credit.received

    def ask_for(self, server: int) -> None:
        """An OPEN_READER is sent: drop batches that the server draws again."""
        opening, inbox = self.opening, self.inbox
        opening.server, opening.number = server, opening.number + 1
        self.leases.clear()
        inbox.waiting = deque(
            one for one in inbox.waiting if one.lease is None or self.holds(one.lease)
        )

    def opened(self, body: Reader, batch_size: int) -> None:
        """Take the answer to OPEN_READER."""
        opening, credit, options = self.opening, self.credit, self._options
        schema = opening.schema = schema_of(body.schema)
        opening.leased, opening.eta, opening.later_s = body.leased, body.eta, LATER_S
        self.totals.wanted = True
        form = BatchForm.of(schema, batch_size)
        opening.unpacking, nbytes = Unpacking(form), form.nbytes
        wished = options.prefetch
        if wished is None:
            wished = min(ahead_of(schema, nbytes, options.planned), options.most)
        shared = body.transport == "shm"
        credit.ahead = min(wished, MOST_AHEAD if shared else opening.limits.ahead(nbytes))
        credit.received = credit.told = 0
        kept = len(self.inbox.waiting)
        credit.granted = max(0, credit.ahead - kept)

    def settled(self) -> list[int]:
        """Return the numbers of used batches, once."""
        settled = self.returns.settled
        leases = [settled.popleft() for _ in range(len(settled))]
        return [one.number for one in leases if one.opening == self.opening.number]

    def receive(self, message: Message, body: Batch) -> None:
        """Take batches from a socket. Drop those that are here, and those of an earlier opening.

        Raises
        ------
        Malformed
        """
        credit, first, unpacking = self.credit, message.sequence, self.opening.unpacking
        if first < credit.received:
            return
        assert unpacking is not None
        found = unpacking.form.blocks(body)
        if first + len(found) <= credit.granted:  # else of an earlier opening
            for i, block in enumerate(found):
                self._add(first + i, SocketBatch(unpacking, block), message.flags)

    def receive_slots(self, message: Message, body: SlotBatches) -> None:
        """As `receive`, for batches in shared memory."""
        credit, first, slots = self.credit, message.sequence, self._memory.slots
        if not credit.received <= first <= credit.granted - len(body.places):
            return
        if slots is None:
            raise Malformed("a batch came in shared memory, and none was offered")
        for i, place in enumerate(body.places):
            self._add(first + i, slots.take(place), place.flags)

    def _add(self, number: int, body: SocketBatch | FilledSlot, flags: int) -> None:
        opening, inbox = self.opening, self.inbox
        self.credit.received = number + 1
        inbox.batches += 1
        inbox.complaint = None
        inbox.redelivered += bool(flags & REDELIVERED)
        lease = None
        if opening.leased:
            lease = self.leases[number] = Lease(self, number, opening.number, opening.server)
        inbox.waiting.append(ReceivedBatch(body, lease, opening.server))
