"""What a client has done, as a frozen snapshot. Counts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One client at one moment, over all its writers and sources.

    Attributes
    ----------
    rows_added : int
        Rows that became part of a message, final observations too.
    rows_acked : int
        Those that the feeder said are in its tables.
    rows_dropped : int
        Given up because the buffer was full (``overflow="drop_oldest"``).
    rows_lost : int
        Acknowledged, and lost with the feeder that had acknowledged them.
    messages_sent, messages_resent, messages_acked : int
        INSERTs; those sent again are counted in both.
    bytes_sent : int
        Of rows, with those that were sent again.
    bytes_kept : int
        That are not acknowledged, at this moment.
    batches, batches_redelivered : int
        That came; those of them that may have come before, here or to another learner.
    sessions : int
        1 without a reconnect.
    last_heard_s : float | None
        Seconds since anything came from the feeder.
    connected : bool
        There is a session at this moment.
    """

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
