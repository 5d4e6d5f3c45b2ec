"""Memory of this process for large arrays of calls, on the feeder's host.

::

    free ─lease─▶ filled ─▶ ROLLOUTS names the slot ─▶ answered ─▶ free
    free ─lease─▶ ROLLOUTS lends it ─▶ the answer is in it ─▶ its last array dies ─▶ free

A slot whose call was given up is not used again in the session: the feeder may still use it.
"""

from __future__ import annotations

import threading

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.slots import retire_at_forks
from async_loader.feeder.memory_offer import Offer
from async_loader.shm.slot_leases import Lease, SlotRing

_SLOTS = 6


class CallMemory:
    """Slots of one client. Threads: any.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._session = 0
        self.ring: SlotRing | None = None

    def lease(self) -> tuple[int, int, Lease] | None:
        """Return session, number and bytes of a slot; ``None``: use the socket.

        Each session has memory of its own: a server that was left may still write into the one
        before.
        """
        self._connection.check()
        session, endpoint = self._connection.session.number, self._connection.memory_endpoint
        with self._lock:
            if endpoint is not None and session != self._session:
                self._session, self.ring = session, self._offered(session, endpoint)
            leased = None if endpoint is None or self.ring is None else self.ring.lease()
            if self.ring is None or leased is None:
                return None
            self.ring.lend(leased[0])  # as long as it is leased, for forks
        return session, *leased

    def close(self) -> None:
        """Free the memory. Arrays in it keep theirs."""
        ring, self.ring = self.ring, None
        if ring is not None:
            ring.segment.close()

    def _offered(self, session: int, endpoint: str) -> SlotRing | None:
        try:
            nbytes = 2 * self._connection.limits.message_bytes  # an answer may be larger
            ring = SlotRing(_SLOTS, nbytes, _SLOTS, commit=False)
            ring.segment.seal()
            offer = Offer(session, 0, _SLOTS, ring.slot_bytes, "calls")
            offer.send(endpoint, ring.segment.fileno())
        except (AsyncLoaderError, OSError):
            return None
        retire_at_forks(self)
        return ring
