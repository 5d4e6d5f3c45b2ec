"""How many steps writers may still write, so that all that may come stays within the limiter. Under
the table's lock.

# NOTE [permits]
A step needs a row and a permit. Rows are only memory, and are granted ahead. InsertCredits are
insertions that may come, and count as such: for the limiter it is as if they had come. A writer
takes them one by one out of a word of its lane, and what it has not taken the owner may take back
in one atomic step. So a writer that is slow, idle or stopped keeps nobody from inserting, apart
from the few steps that it is writing.
"""

from __future__ import annotations

from collections.abc import Collection

from async_loader.replay.base import ring_format
from async_loader.replay.limiter_state import LimiterState
from async_loader.replay.multiprocess.writer_peer import WriterPeer
from async_loader.replay.rate_limiter import UNLIMITED

_AHEAD = 64  # permits beyond those that were asked for, so that a writer need not ask for each step


class InsertCredits:
    """InsertCredits of all writers of a table.

    Parameters
    ----------
    links : collection of Link
        Shared with the service, which adds and removes.
    """

    def __init__(self, links: Collection[WriterPeer]) -> None:
        self._links = links
        self._limited = False

    def follow(self, limits: LimiterState | None) -> None:
        """The limiter was changed, or a writer has come."""
        self._limited = limits is not None and limits.insertable() != UNLIMITED
        for link in self._links:
            self._reclaim(link)
            if not self._limited:
                self._give(link, ring_format.UNLIMITED)

    def promised(self) -> int:
        """Steps that may come without anybody being asked."""
        return (
            sum(link.issued - link.grant_log.stepped for link in self._links)
            if self._limited
            else 0
        )

    def may_insert(self, limits: LimiterState, count: int) -> bool:
        """Whether others than the writers may insert so many at once."""
        if limits.may_insert_together(count, self.promised()):
            return True
        self._reclaim_all()
        return limits.may_insert_together(count, self.promised())

    def issue(self, link: WriterPeer, steps: int, limits: LimiterState | None) -> bool:
        """Give a writer permits for ``steps`` steps or fewer; whether it has any now."""
        if not self._limited or limits is None or not steps:
            return True
        free = limits.insertable() - self.promised()
        if free < steps:
            self._reclaim_all()
            free = limits.insertable() - self.promised()
        if free <= 0:
            return False
        count = min(steps, free)
        self._give(link, count + min(_AHEAD, (free - count) // (4 * len(self._links))))
        return True

    def _give(self, link: WriterPeer, count: int) -> None:
        link.issued += count
        link.lane.give(count)

    def _reclaim_all(self) -> None:
        for link in self._links:
            self._reclaim(link)

    def _reclaim(self, link: WriterPeer) -> None:
        link.issued -= link.lane.take_back()
