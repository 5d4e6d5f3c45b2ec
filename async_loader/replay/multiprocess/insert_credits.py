"""How many steps writers of other processes may still add within the limiter.

Under the table's lock.

# NOTE [credits]
A step needs a row and a credit. Rows are only memory, and are granted ahead. A credit is an
insertion that may come, and the limiter counts it as inserted. A writer takes its credits one by
one out of a word of its ring, and the table's process can take back the unused ones in one atomic
step. So a writer that is slow, idle or stopped blocks other insertions by no more than the few
steps that it is writing.
"""

from __future__ import annotations

from collections.abc import Collection

from async_loader.replay.base import ring_format
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.multiprocess.writer_peer import WriterPeer
from async_loader.replay.rate_limiter import UNLIMITED
from async_loader.replay.table.table import Table

_AHEAD = 64  # credits beyond a request, so that a writer need not ask for each step


class InsertCredits:
    """The credits of all writers of a table.

    Parameters
    ----------
    peers : collection of WriterPeer
        Shared with the service, which adds and removes.
    table : Table

    Attributes
    ----------
    limited : bool
        Whether a limiter may stop inserting.
    """

    def __init__(self, peers: Collection[WriterPeer], table: Table) -> None:
        self._peers, self._table = peers, table
        self.limited = False

    def follow(self, limits: LimiterState | None) -> None:
        """Take back all credits after a change of the limiter, or for a new writer."""
        self.limited = limits is not None and limits.insertable() != UNLIMITED
        for peer in self._peers:
            self._reclaim(peer)
            if not self.limited:
                self._give(peer, ring_format.UNLIMITED)

    def promised(self) -> int:
        """Return how many steps may still be added on credits."""
        return (
            sum(peer.issued - peer.grant_log.stepped for peer in self._peers) if self.limited else 0
        )

    def may_insert(self, limits: LimiterState, count: int) -> bool:
        """Return whether a thread of the table's process may insert ``count`` steps at once."""
        if limits.may_insert_together(count, self.promised()):
            return True
        self._reclaim_all()
        return limits.may_insert_together(count, self.promised())

    def issue(self, peer: WriterPeer, steps: int, limits: LimiterState | None) -> bool:
        """Give a writer credits for up to ``steps`` steps. Return whether it has any now."""
        if not self.limited or limits is None or not steps:
            return True
        count = self.available(peer, steps, limits)
        if not count:
            return False
        free = limits.insertable() - self.promised() - count
        self._give(
            peer, count + (0 if self._table.keeps else min(_AHEAD, free // (4 * len(self._peers))))
        )
        return True

    def available(self, peer: WriterPeer, steps: int, limits: LimiterState | None) -> int:
        """Return how many credits a writer that waits can have, ``steps`` at most."""
        if not self.limited or limits is None:
            return steps
        if self._table.keeps:
            self._reclaim(peer)
        free = limits.insertable() - self.promised()
        if free < steps:
            self._reclaim_all()
            free = limits.insertable() - self.promised()
        return max(0, min(steps, free))

    def _give(self, peer: WriterPeer, count: int) -> None:
        peer.issued += count
        peer.ring.give(count)

    def _reclaim_all(self) -> None:
        """Take back credits that are not about to be used.

        Where rows come only with credits, a writer with rows is about to fill them: without its
        credits it would ask again, and could take those of the next one in the same way.
        """
        for peer in self._peers:
            if not (self._table.keeps and peer.grant_log.held):
                self._reclaim(peer)

    def _reclaim(self, peer: WriterPeer) -> None:
        peer.issued -= peer.ring.take_back()
