"""What the writers and readers of a client did, counted for `ClientStats`. Any thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from async_loader.feeder.client.outbox import Counts
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.reader_state import OVER
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase

_NAMES = (*Counts.__slots__, "rows_added", "batches", "batches_redelivered")
_OVER = (WriterPhase.CLOSED, WriterPhase.FAILED, *OVER)


class Traffic:
    """All channels of a client. Those that are over are summed up when another is added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: list[WriterChannel | ReaderChannel] = []
        self._past: Counter[str] = Counter()

    def add(self, channel: WriterChannel | ReaderChannel) -> None:
        """Count what a writer or a reader does."""
        with self._lock:
            over = [one for one in self._channels if one.phase in _OVER]
            if over:
                self._channels = [one for one in self._channels if one not in over]
                self._past.update(_sum(over))
            self._channels.append(channel)

    def _writers(self) -> list[WriterChannel]:
        return [one for one in self._channels if isinstance(one, WriterChannel)]

    def open_writers(self) -> list[WriterChannel]:
        """Return the channels of writers that are not over."""
        over = (WriterPhase.CLOSED, WriterPhase.FAILED)
        with self._lock:
            return [one for one in self._writers() if one.phase not in over]

    def open_reads(self) -> list[ReaderChannel]:
        """Return the channels of readers that are not over."""
        with self._lock:
            reads = [one for one in self._channels if not isinstance(one, WriterChannel)]
            return [one for one in reads if one.phase not in OVER]

    def totals(self) -> dict[str, Any]:
        """Return the counts of `ClientStats`."""
        with self._lock:
            total = self._past + _sum(self._channels)
            kept = sum(one.queue.outbox.nbytes for one in self._writers())
        return {**{name: total[name] for name in _NAMES}, "bytes_kept": kept}


def _sum(channels: Iterable[WriterChannel | ReaderChannel]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in channels:
        if isinstance(one, WriterChannel):
            counts = one.queue.outbox.counts
            total.update({name: getattr(counts, name) for name in Counts.__slots__})
            total["rows_added"] += one.queue.steps()
        else:
            inbox = one.deliveries.inbox
            total.update({"batches": inbox.batches, "batches_redelivered": inbox.redelivered})
    return total
