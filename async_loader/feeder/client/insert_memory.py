"""Memory of an actor's process that the feeder reads rows from: made, offered, filled slot by slot.

::

    free ─take─▶ a buffer is filled ─▶ INSERT names the slot ─▶ ACK ─▶ free

# NOTE [slots of a writer]
The memory is offered before the first large message, and again each time that the writer is opened
again: a slot keeps its message until that is acknowledged, whichever server does it. Where the
feeder takes no memory, the same rows go over the socket.
"""

from __future__ import annotations

import logging

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.row_packer import Slot
from async_loader.feeder.memory_offer import Offer
from async_loader.shm.segment import Segment

SLOTS = 16
_PAGE = 4096
_log = logging.getLogger(__name__)


class InsertMemory:
    """The memory of writer ``number``. Thread rule: under the writer's lock.

    Attributes
    ----------
    taken : bool
        Whether the feeder reads from it now.
    free : list of int
        Slots without a message.
    """

    def __init__(self, port: IoThread, table: str, number: int) -> None:
        self._port, self._table, self._number = port, table, number
        self.taken, self._asked = False, True
        self.free: list[int] = []
        self._segment: Segment | None = None
        self._slot_bytes = 0

    def begin(self, opened: bool) -> None:
        """The writer is opened (again): the feeder does not have the memory, and may be asked."""
        self.taken, self._asked = False, not opened

    def take(self, nbytes: int, slot_bytes: int) -> Slot | None:
        """Return a free slot for ``nbytes``; ``None``: use the socket.

        The memory is offered where it was not: the answer comes at once, unless the feeder is
        stopped.
        """
        if not self._asked:
            self._asked = True
            self._offer(slot_bytes)
        if not self.taken or nbytes > self._slot_bytes or not self.free:
            return None
        assert self._segment is not None
        number = self.free.pop()
        return number, self._segment.view(number * self._slot_bytes, nbytes)

    def _offer(self, slot_bytes: int) -> None:
        port = self._port
        endpoint = port.memory_endpoint
        if endpoint is None:
            return
        try:
            if self._segment is None:
                self._slot_bytes = -(-slot_bytes // _PAGE) * _PAGE
                nbytes, purpose = SLOTS * self._slot_bytes, f"{SLOTS} slots of a writer"
                segment = Segment.create(nbytes, purpose, commit=False)
                segment.seal()
                self._segment, self.free = segment, list(range(SLOTS))
            offer = Offer(port.session.number, self._number, SLOTS, self._slot_bytes, "writer")
            offer.send(endpoint, self._segment.fileno())
            self.taken = True
        except (AsyncLoaderError, OSError) as error:
            text = "rows of table %r go to %s over its socket, not in shared memory: %s"
            _log.debug(text, self._table, port.address, error)

    def close(self) -> None:
        """Free the memory. The feeder keeps what it has mapped."""
        segment, self._segment, self.free = self._segment, None, []
        self.taken, self._asked = False, True
        if segment is not None:
            segment.close()
