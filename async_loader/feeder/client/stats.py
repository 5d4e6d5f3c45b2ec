"""The counts of a client, as a frozen snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from async_loader.shm.limits import human
from async_loader.stats import Stats


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
