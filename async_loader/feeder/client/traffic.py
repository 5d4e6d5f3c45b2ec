"""What the writers and readers of a client did, counted for `ClientStats`. Any thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from async_loader.feeder.client.outbox import Counts
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.reader_state import ReaderPhase
from async_loader.feeder.client.sample_channel import SampleChannel
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase

_COUNTED = 64
"""Writers, and readers, that are counted one by one; of more, closed ones are summed up."""
_NAMES = (*Counts.__slots__, "rows_added", "batches", "batches_redelivered")
Read = ReaderChannel | SampleChannel


class Traffic:
    """All channels of a client, open and closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: list[WriterChannel] = []
        self._readers: list[Read] = []
        self._past: Counter[str] = Counter()  # of closed channels

    def add_writer(self, channel: WriterChannel) -> None:
        """Count what a writer does."""
        with self._lock:
            self._writers.append(channel)
            if len(self._writers) > _COUNTED:
                over = [one for one in self._writers if one.phase is WriterPhase.CLOSED]
                self._writers = [one for one in self._writers if one not in over]
                self._past.update(_sum(map(_written, over)))

    def add_reader(self, channel: Read) -> None:
        """Count what a reader does."""
        with self._lock:
            self._readers.append(channel)
            if len(self._readers) > _COUNTED:
                over = [one for one in self._readers if one.phase is ReaderPhase.CLOSED]
                self._readers = [one for one in self._readers if one not in over]
                self._past.update(_sum(map(_read, over)))

    def open_writers(self) -> list[WriterChannel]:
        """Return the channels of writers that are not over."""
        over = (WriterPhase.CLOSED, WriterPhase.FAILED)
        with self._lock:
            return [one for one in self._writers if one.phase not in over]

    def totals(self) -> dict[str, Any]:
        """Return the counts of `ClientStats`."""
        with self._lock:
            total = (
                self._past + _sum(map(_written, self._writers)) + _sum(map(_read, self._readers))
            )
            kept = sum(one.queue.outbox.nbytes for one in self._writers)
        return {**{name: total[name] for name in _NAMES}, "bytes_kept": kept}


def _sum(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _written(channel: WriterChannel) -> dict[str, int]:
    counts = channel.queue.outbox.counts
    sent = {name: getattr(counts, name) for name in Counts.__slots__}
    return {**sent, "rows_added": channel.queue.steps()}


def _read(channel: Read) -> dict[str, int]:
    return {"batches": channel.batches, "batches_redelivered": channel.redelivered}
