"""The counts of a client, as a frozen snapshot."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from async_loader.feeder.client.outbox import Counts
from async_loader.feeder.client.reader_batches import OVER
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.shm.limits import human
from async_loader.stats import Stats

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
        """Return the channels of writers that are not closed, nor known to have failed."""
        with self._lock:
            writers = [one for one in self._writers() if not one.told]
            return [one for one in writers if one.phase is not WriterPhase.CLOSED]

    def open_reads(self) -> list[ReaderChannel]:
        """Return the channels of readers that are not over."""
        with self._lock:
            reads = [one for one in self._channels if not isinstance(one, WriterChannel)]
            return [one for one in reads if one.phase not in OVER]

    def totals(self) -> dict[str, Any]:
        """Return the counts of `ClientStats`."""
        with self._lock:
            total = self._past + _sum(self._channels)
            kept = sum(one.outbox.nbytes for one in self._writers())
        return {**{name: total[name] for name in _NAMES}, "bytes_kept": kept}


def _sum(channels: Iterable[WriterChannel | ReaderChannel]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in channels:
        if isinstance(one, WriterChannel):
            counts = one.outbox.counts
            total.update({name: getattr(counts, name) for name in Counts.__slots__})
            total["rows_added"] += one.steps
        else:
            total.update({"batches": one.batches, "batches_redelivered": one.redelivered})
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats(Stats):
    """One client at one moment, over all its writers and sources.

    Attributes
    ----------
    rows_added : int
        Rows that became part of a message, final observations too.
    rows_acked : int
        Rows that the feeder has acknowledged: they are in its tables.
    rows_dropped : int
        Steps that were dropped because the buffer was full (``overflow="drop_oldest"``).
    rows_lost : int
        Acknowledged by a feeder that was lost with them.
    messages_sent, messages_resent, messages_acked : int
        INSERTs; repeated ones are in both of the first.
    bytes_sent : int
        Bytes of rows, repeated ones too.
    bytes_kept : int
        Bytes that are not acknowledged at this moment.
    batches, batches_redelivered : int
        Received batches; those with rows that a learner may have had before.
    sessions : int
        1 without a reconnect.
    last_heard_s : float | None
        Seconds since the feeder was last heard.
    connected : bool
        Whether there is a session at this moment.
    """

    KIND: ClassVar[str] = "client"
    COUNTERS: ClassVar[frozenset[str]] = frozenset(
        {
            "rows_added",
            "rows_acked",
            "rows_dropped",
            "rows_lost",
            "messages_sent",
            "messages_resent",
            "messages_acked",
            "bytes_sent",
            "batches",
            "batches_redelivered",
            "sessions",
        }
    )

    rows_added: int
    rows_acked: int
    rows_dropped: int
    rows_lost: int
    messages_sent: int
    messages_resent: int
    messages_acked: int
    bytes_sent: int
    bytes_kept: int
    batches: int
    batches_redelivered: int
    sessions: int
    last_heard_s: float | None
    connected: bool

    def __str__(self) -> str:
        """Return a line for the connection, for rows, and for batches, of those that there were."""
        said = "connected" if self.connected else "not connected"
        if self.last_heard_s is not None:
            said += f", heard {self.last_heard_s:.1f} s ago"
        if self.sessions > 1:
            said += f", session {self.sessions}"
        lines = [said]
        if self.rows_added:
            rows = f"{self.rows_added:,} rows added, {self.rows_acked:,} acknowledged"
            counts = {
                "dropped": self.rows_dropped,
                "lost with the feeder": self.rows_lost,
                "messages sent again": self.messages_resent,
            }
            rows += "".join(f", {count:,} {name}" for name, count in counts.items() if count)
            lines.append(f"{rows}; {human(self.bytes_sent)} sent, {human(self.bytes_kept)} kept")
        if self.batches:
            again = f", {self.batches_redelivered:,} redelivered" * bool(self.batches_redelivered)
            lines.append(f"{self.batches:,} batches received{again}")
        return "\n".join(lines)
