"""Leases of batches whose rows are leased by several shards; see `async_loader.source.Leasing`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from async_loader.feeder.client.source import RemoteSource
from async_loader.scale.batch_maker import Part
from async_loader.scale.shard_rows import ShardRows


@dataclass(frozen=True, slots=True, eq=False)
class BatchLease:
    """What one batch has of each shard."""

    parts: Sequence[tuple[RemoteSource, ShardRows, Part]]


class Leases:
    """Hands batches out, settles them, and keeps parts of those that cannot be handed out.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._back: list[tuple[ShardRows, Part]] = []

    def of(self, parts: Sequence[tuple[ShardRows, Part]]) -> BatchLease | None:
        """Return the lease of a batch; ``None`` if none of its rows is leased."""
        leased = [(rows.source, rows, part) for rows, part in parts if part.chunk.lease is not None]
        return BatchLease(leased) if leased else None

    def hand_out(self, lease: BatchLease) -> bool:
        """See `Leasing.hand_out`.

        If one part was delivered again elsewhere, the batch is dropped, and its other parts come
        with later batches.
        """
        if any(source.returned(part.chunk.lease) for source, _, part in lease.parts):
            with self._lock:
                self._back += [
                    (rows, part)
                    for source, rows, part in lease.parts
                    if not source.returned(part.chunk.lease)
                ]
            return False
        handed_out = [source.hand_out(part.chunk.lease) for source, _, part in lease.parts]
        return all(handed_out)

    def settle(self, lease: BatchLease) -> None:
        """See `Leasing.settle`. A chunk is settled with the batch that has its last rows."""
        for source, _, part in lease.parts:
            if part.last:
                source.settle(part.chunk.lease)

    def put_back(self) -> None:
        """Put the rows of dropped batches in front again. Called before rows are taken."""
        with self._lock:
            back, self._back = self._back, []
        for rows, part in reversed(back):
            rows.put_back(part)
