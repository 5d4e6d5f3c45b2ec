"""A learner's reader, as the server knows it: credit, leases, memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from async_loader.errors import Malformed
from async_loader.feeder.server.policy_lag import PolicyVersions
from async_loader.feeder.server.send_buffers import OutgoingBatch, SendBuffer
from async_loader.feeder.shared import SharedBatchRing
from async_loader.feeder.wire import BatchForm
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.replay.table.sampler_session import SamplerSession
from async_loader.schema import Schema

_TOLD_BYTES = 1 << 20
"""Filled slots of this size are told of in one message."""


class Scheduler(Protocol):
    """What a reader's messages ask of its table's `BatchScheduler`."""

    table: NonblockingTable

    def want(self, reader: ReaderState, now: float) -> None:
        """See `BatchScheduler.want`; so for all methods."""

    def settle(
        self, reader: ReaderState, arrived: int, seen: Collection[int], unused: Collection[int]
    ) -> None: ...

    def close(self, reader: ReaderState) -> None: ...

    def give_back(self, reader: ReaderState, numbers: Sequence[int]) -> None: ...


@dataclass(slots=True, eq=False)
class ReaderState:
    """A learner's reader.

    Attributes
    ----------
    session, number : int
    granted, sent : int
        Batches, counted from the opening.
    hungry_since : float | None
        Since when it has had credit and got no batch; ``None``: it is not in the ready queue.
    leases : dict
        Batches that were not given back, by number.
    opening : int
        The sequence of its OPEN_READER: earlier PULLs count batches of an earlier opening.
    index_place : int
        Which array of a batch is ``index``.
    send_buffer : SendBuffer | None
        What its batches are sent from; ``None``: they are written into ``batch_ring``, memory that
        the learner offers.
    wait_s : float | None
        Of a reader for calls: how long its call may wait; see `OpenReader`.
    until : float | None
        When that is over, on the server's clock.
    refused : int
        ERRORs that took the place of a batch.
    samples_itself : bool
        Whether it has a sampler of its own.
    takes_short : bool
        Whether its batches of a queue may have fewer rows: others come from other servers.
    versions : PolicyVersions
        Finds the versions in its batches.
    """

    session: int = field(repr=False)
    number: int
    scheduler: Scheduler
    drawing: SamplerSession
    form: BatchForm
    timeout_s: float | None
    ahead: int
    opening: int
    send_buffer: SendBuffer | None
    index_place: int = 0
    granted: int = 0
    sent: int = 0
    hungry_since: float | None = None
    leases: OrderedDict[int, OutgoingBatch] = field(default_factory=OrderedDict)
    batch_ring: SharedBatchRing | None = None
    wait_s: float | None = None
    until: float | None = None
    refused: int = 0
    samples_itself: bool = False
    takes_short: bool = False
    versions: PolicyVersions = field(init=False)

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self.form.batch_size

    @property
    def together(self) -> int:
        """Batches of one message."""
        if self.send_buffer is not None:
            return self.send_buffer.most
        return max(1, _TOLD_BYTES // self.form.nbytes)

    @property
    def schema(self) -> Schema:
        """Schema of a batch's rows; see `schema_of_batches`."""
        return schema_of_batches(self.scheduler.table, self.drawing.schema)

    @property
    def shared(self) -> bool:
        """Whether its batches go into memory that the learner offers."""
        return self.send_buffer is None

    @property
    def has_credit(self) -> bool:
        """Whether it may be sent a batch."""
        return self.sent < self.granted and (self.send_buffer is not None or self.has_slot)

    @property
    def has_slot(self) -> bool:
        """Whether the next batch can go into its memory."""
        return self.batch_ring is not None and self.batch_ring.free > 0

    @property
    def memory(self) -> SendBuffer | SharedBatchRing:
        """Where its next batch goes. The reader has credit."""
        memory = self.batch_ring if self.send_buffer is None else self.send_buffer
        assert memory is not None
        return memory

    def grant(self, total: int, received: int, wait_s: float, now: float) -> None:
        """Set absolute credit and the receive watermark; lower values than before are ignored."""
        if self.wait_s is not None and total > self.granted:
            self.wait_s, self.until = wait_s, now + abs(wait_s)
        self.granted = max(self.granted, min(total, self.sent + self.ahead))
        if self.send_buffer is not None:
            self.send_buffer.received(min(received, self.sent))

    def refuse(self) -> int:
        """Return the sequence of an ERROR, which takes the place of a batch in a call."""
        sequence = self.sent
        if self.wait_s is not None:
            self.sent += 1
            self.refused += 1
        return sequence

    def take_back(self, slots: Sequence[int]) -> None:
        """Take slots back. Raises Malformed for slots that the learner does not have."""
        if self.batch_ring is None:
            raise Malformed(
                f"reader {self.number} gives slots, and has offered no memory: offer it first"
            )
        self.batch_ring.give_back(slots)

    def let_go(self) -> None:
        """Unmap the memory of a closed reader."""
        batch_ring, self.batch_ring = self.batch_ring, None
        if batch_ring is not None:
            batch_ring.close()

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the reader is sent a TIMEOUT."""
        if self.until is not None:
            return max(0.0, self.until - now)
        if self.timeout_s is None or self.hungry_since is None:
            return None
        return max(0.0, self.hungry_since + self.timeout_s - now)


def schema_of_batches(table: NonblockingTable, drawn: Schema) -> Schema:
    """Return the schema of batches: rows of a leasing table have ``redelivered`` too."""
    return drawn.with_field("redelivered", np.bool_) if table.leased else drawn
