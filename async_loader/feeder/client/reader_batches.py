"""The batches of one reader and the credit for them: the learner's side of a reader.

::

    BATCH ──receive──▶ waiting ──next──▶ the learner ──settle──▶ RETURN
                         └── one credit more for each ──▶ PULL
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.channel import Failure, Request, check_opener
from async_loader.feeder.client.slots import ReaderSlots
from async_loader.feeder.wire import REDELIVERED, BatchForm, CloseReader, OpenReader
from async_loader.lifecycle import EventFd
from async_loader.schema import Schema
from async_loader.shm.slot_leases import COPY_BELOW, Lease

if TYPE_CHECKING:
    from async_loader.feeder.client.connection import Connection

AHEAD_BYTES, AHEAD_LEAST, AHEAD_MOST, AHEAD_WEIGHTED = 4 << 20, 4, 32, 8
"""Batches ahead by default: many small ones share a message. Fewer where batches have weights:
weights and priorities are those of the moment of the draw."""
Transport = Literal["auto", "shm", "tcp"]


class ReaderPhase(enum.Enum):
    """Where a reader is."""

    WANTED = "opening"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


OVER = {ReaderPhase.CLOSED, ReaderPhase.FAILED}


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """One batch that is not unpacked; of a queue also the lease on it.

    Attributes
    ----------
    reader : ReaderBatches
    number, opening : int
        It is batch ``number`` of an ``opening`` of the reader.
    server : int
        Whose ids it has, see `Connection.servers`.
    layout : BatchLayout
    rows : int
    block : uint8 array | None
        Its bytes; ``None`` once it was unpacked.
    lends : bool
        Whether arrays may be views of the block.
    slot, slots : int, ReaderSlots | None
        Where it lies in shared memory.
    handed_out : bool
        User code may have seen it.
    """

    reader: ReaderBatches
    number: int
    opening: int
    server: int
    layout: BatchLayout
    rows: int
    block: Lease | None
    lends: bool = True
    slot: int = -1
    slots: ReaderSlots | None = None
    handed_out: bool = False

    def copy(self) -> None:
        """Copy the batch, which frees its slot."""
        assert self.block is not None
        block, slots = self.block[: self.layout.nbytes].copy(), self.slots
        self.block, self.lends, self.slots = block, True, None
        if slots is not None and slots.copies:
            slots.back.append(self.slot)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the arrays: views of the block while that can be lent, else of a copy. Once."""
        if not self.lends or (self.slots is not None and not self.slots.lend(self.slot)):
            self.copy()
        assert self.block is not None
        arrays = self.layout.views(self.block)
        return arrays if len(arrays[0]) == self.rows else [array[: self.rows] for array in arrays]


class ReaderBatches:
    """The learner's side of one reader of one table.

    What changes does so under ``lock``; methods take it, unless they say otherwise.

    Parameters
    ----------
    port : Connection
    number : int
    wanted : OpenReader
    prefetch : int | None
        Batches on their way or waiting here; 0: each is drawn when a thread waits for it.
        ``None``: `ahead_of` decides once the schema is known.
    asked : "auto" | "shm" | "tcp"
    planned : int
        Batches that a loader plans ahead of the learner.
    wait_s : float | None
        Of a reader for calls: how long the present one may wait.

    Attributes
    ----------
    dropped : bool
        The source was garbage-collected: close the reader.
    bell : EventFd | None
        Rung when something changes, while a thread waits on it. Set by `listen`.
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
    leases : dict of ReceivedBatch
        Of this opening, by number: batches that are here, or with the learner.
    settled : list of ReceivedBatch
        Batches that were used, which the feeder has to be told.

    Raises
    ------
    ConfigError
        It cannot be opened.
    """

    def __init__(
        self,
        port: Connection,
        number: int,
        wanted: OpenReader,
        prefetch: int | None,
        asked: Transport,
        planned: int,
        wait_s: float | None,
    ) -> None:
        check_opener(wanted)
        self.port, self.number, self.wanted, self.wait_s = port, number, wanted, wait_s
        self._prefetch, self._asked, self._planned = prefetch, asked, planned
        self.lock = threading.Lock()
        self.bell: EventFd | None = None
        self.phase = ReaderPhase.WANTED
        self.failure: Failure | None = None
        self.dropped = self.leased = False
        self.opening = self.server = 0
        self.schema: Schema | None = None
        self.eta: float | None = None
        self.transport: Literal["shm", "tcp"] | None = None
        self.slots: ReaderSlots | None = None
        self._form: BatchForm | None = None
        self.ahead = prefetch or 0
        self.granted = self.told = self.received = 0
        self._before = 0  # batches of earlier openings
        self.ended_after: int | None = None
        self.waiting: deque[ReceivedBatch] = deque()
        self.complaint: AsyncLoaderError | OSError | None = None
        self.leases: dict[int, ReceivedBatch] = {}
        self.settled: list[ReceivedBatch] = []
        self._request = Request()
        self._remind_at = 0.0
        self._parting: CloseReader | None = None
        self._barred = False  # from shared memory, in this session
        self._logged = ""

    # -- the learner -------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a PULL is due.

        Credit goes out by halves of what may be ahead, as each PULL wakes two threads and a server.
        Less only if the feeder has nothing left to send, for want of credit or of slots.
        """
        new, idle, slots = self.granted - self.told, self.told <= self.received, self.slots
        if slots is not None and not slots.copies:  # else slots go with the credit
            new, idle = max(new, slots.ring.free), idle or not slots.theirs
        return new > 0 and (2 * new >= self.ahead or (idle and not self.waiting))

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, and everything received was taken."""
        after = self.ended_after
        return after is not None and not self.waiting and self.received >= after

    def next(self) -> ReceivedBatch | None:
        """Return the next received batch, and grant one credit. Under the lock.

        With prefetch=0, grant it when a consumer starts to wait. Credit is granted also for batches
        from before a reopening, which `_opened` has deducted.
        """
        if self.waiting:
            if self.waiting[0].layout.nbytes < COPY_BELOW:
                self.waiting[0].copy()  # before it is taken: an interrupt leaves it here
            self.granted += self.ahead > 0
            return self.waiting.popleft()
        if self.phase is ReaderPhase.READY and not self.ahead and self.granted == self.received:
            self.granted += 1
        return None

    def listen(self, bell: EventFd | None) -> None:
        """A thread begins to wait, or waits no more: an earlier complaint is not for it."""
        with self.lock:
            self.bell, self.complaint = bell, None

    def ring(self) -> None:
        """Ring the bell of a thread that waits. Any thread."""
        with self.lock:
            self._ring_bell()

    def _ring_bell(self) -> None:
        if self.bell is not None:
            self.bell.ring()

    @property
    def first(self) -> int:
        """The number of the batch that comes next, over all openings."""
        return self.wanted.first + self._before + self.received

    def _holds(self, lease: ReceivedBatch) -> bool:
        """Return whether a batch is still this learner's: the feeder has not taken it back.

        Batches of an earlier server are in no other table, so they stay.
        """
        current = lease.opening == self.opening or lease.server != self.server
        return current or self.ended_after is not None

    def hand_out(self, lease: ReceivedBatch) -> bool:
        """Note that user code has the batch from here on; return False if it was given back."""
        with self.lock:
            lease.handed_out = self._holds(lease)
            return lease.handed_out

    def settle(self, lease: ReceivedBatch) -> None:
        """Note that a batch was used."""
        with self.lock:
            if lease.handed_out and self.leases.get(lease.number) is lease:
                self.settled.append(self.leases.pop(lease.number))

    def _give_back(self, used: bool) -> None:
        """Give back all leases, or all but those of batches that were handed out, if ``used``."""
        leases = self.leases
        seen = [] if used else [number for number, one in leases.items() if one.handed_out]
        unseen = [number for number, one in leases.items() if not one.handed_out]
        self._parting = CloseReader(self.received, len(seen), (*seen, *unseen))
        self.opening += 1  # so `_holds` is false for all of them
        for one in (leases, self.settled, self.waiting):
            one.clear()

    def _add(self, flags: int, *batch: Any) -> None:
        """Add a received batch; ``batch``: what `ReceivedBatch` takes from its layout on."""
        made = ReceivedBatch(self, self.received, self.opening, self.server, *batch)
        self.complaint = None
        self.port.count(batches=1, batches_redelivered=bool(flags & REDELIVERED))
        if self.leased:
            self.leases[self.received] = made
        self.received += 1
        self.waiting.append(made)


def ahead_of(schema: Schema, batch_bytes: int, planned: int) -> int:
    """Return how many batches may be ahead by default."""
    weighted = any(one.name == "weight" for one in schema.fields)
    most = AHEAD_WEIGHTED if weighted else AHEAD_MOST
    return max(AHEAD_LEAST, min(most, AHEAD_BYTES // max(1, batch_bytes)), planned)
