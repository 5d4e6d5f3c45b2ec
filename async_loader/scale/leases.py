"""Leases of batches whose rows are leased by several shards; see `async_loader.source.Leasing`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from async_loader.feeder.client.source import RemoteSource
from async_loader.held_locks import held_lock, unheld
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import EventFd
from async_loader.scale.batch_maker import Part
from async_loader.scale.shard_rows import ShardRows


@dataclass(slots=True, eq=False)
class BatchLease:
    """What one batch has of each shard.

    Attributes
    ----------
    parts : sequence
    dropped : bool
        Whether its rows come with other batches.
    """

    parts: Sequence[tuple[RemoteSource, ShardRows, Part]]
    dropped: bool = False


class Leases:
    """Hands batches out, settles them, and keeps parts of those that cannot be handed out.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = held_lock()
        self._back: list[tuple[ShardRows, Part]] = []
        self._bell: EventFd | None = None

    def of(self, parts: Sequence[tuple[ShardRows, Part]]) -> BatchLease | None:
        """Return the lease of a batch; ``None`` if none of its rows is leased."""
        leased = [(rows.source, rows, part) for rows, part in parts if part.chunk.lease is not None]
        return BatchLease(leased) if leased else None

    def listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when there are parts to put back, until another is given, or none."""
        with unheld(self._lock):
            self._bell = bell

    def hand_out(self, lease: BatchLease) -> bool:
        """See `Leasing.hand_out`.

        If one part was delivered again elsewhere, the batch is dropped, and its other parts come
        with later batches.
        """
        if lease.dropped:  # an earlier call of `next` was interrupted by a signal
            return False
        stay = [not source.returned(part.chunk.lease) for source, _, part in lease.parts]
        if all(stay):  # one may go back in this moment
            stay = [source.hand_out(part.chunk.lease) for source, _, part in lease.parts]
        if all(stay):
            return True
        back = [
            (rows, part) for (_, rows, part), stays in zip(lease.parts, stay, strict=True) if stays
        ]
        with SignalsDeferred(), unheld(self._lock):
            lease.dropped = True
            self._back += back
            if self._bell is not None:
                self._bell.ring()
        return False

    def settle(self, lease: BatchLease) -> None:
        """See `Leasing.settle`. A chunk is settled with the batch that has its last unused rows.

        That need not be the end of the chunk: rows of a dropped batch come later than those after
        them.
        """
        if lease.dropped:
            return
        for source, _, part in lease.parts:
            chunk = part.chunk
            chunk.settled[part.start] = part.rows  # no count, which a second call would raise again
            if sum(chunk.settled.values()) == chunk.rows:
                source.settle(chunk.lease)

    def put_back(self) -> None:
        """Put back the rows of dropped batches. Called before rows are taken."""
        with unheld(self._lock):
            back, self._back = self._back, []
        for rows, part in back:
            rows.put_back(part)
