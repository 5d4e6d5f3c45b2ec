"""Memory of an actor's process that the feeder reads rows from: made, offered, filled slot by slot.

::

    free ─take─▶ a buffer is filled ─▶ INSERT names the slot ─▶ ACK ─give_back─▶ free

# NOTE [slots of a writer]
The memory is offered with the first large message, and again each time that the writer is opened
again: a slot keeps its message until that is acknowledged, whichever server does it. Until the
feeder has taken the memory, and where it takes none, the same rows go over the socket.
"""

from __future__ import annotations

import logging

from async_loader.errors import Broken, Malformed, OutOfMemory, Unsupported
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.offered_memory import endpoint_of
from async_loader.feeder.shared import ANSWER_S, Offer, Offering, Owner
from async_loader.lifecycle import Deadline
from async_loader.shm.segment import Segment

LEAST_BYTES = 64 << 10
"""Of a message's rows, from which on they lie in a slot: below the socket costs little more."""
SLOTS = 16
_PAGE = 4096
_log = logging.getLogger(__name__)


class InsertSlot:
    """A slot while its rows are filled, and until they are acknowledged.

    Attributes
    ----------
    number : int
    view : memoryview
    segment : Segment
        That it is a slot of.
    """

    __slots__ = ("number", "segment", "view")

    def __init__(self, number: int, view: memoryview, segment: Segment) -> None:
        self.number, self.view, self.segment = number, view, segment


class InsertMemory:
    """The memory of one writer. Called under the writer's lock.

    Attributes
    ----------
    taken : bool
        Whether the feeder reads from it now.
    """

    def __init__(self) -> None:
        self.taken = False
        self._wanted = self._barred = False
        self._segment: Segment | None = None
        self._offering: Offering | None = None
        self._slot_bytes = 0
        self._free: list[int] = []
        self._lost = False

    # -- the IO thread -----------------------------------------------------------------------------

    def step(self, slot_bytes: int, number: int, table: str, port: IoThread) -> None:
        """Offer the memory of writer ``number``, or look whether it was taken."""
        if self.taken or self._barred or not self._wanted:
            return
        endpoint = endpoint_of(port)
        if endpoint is None:
            return
        try:
            if self._offering is None:
                self._offer(slot_bytes, number, endpoint, port)
            elif self._offering.taken():
                self._withdraw()
                self.taken = True
        except (Unsupported, OutOfMemory, Malformed, Broken, OSError) as error:
            self._withdraw()
            self._barred = True
            text = "rows of table %r go to %s over its socket, not in shared memory: %s"
            _log.debug(text, table, port.address, error)

    def _offer(self, slot_bytes: int, number: int, endpoint: str, port: IoThread) -> None:
        if self._segment is None or self._lost:
            self._slot_bytes = -(-slot_bytes // _PAGE) * _PAGE
            nbytes, purpose = SLOTS * self._slot_bytes, f"{SLOTS} slots of a writer"
            segment = Segment.create(nbytes, purpose, commit=False)
            segment.seal()
            self._segment, self._free, self._lost = segment, list(range(SLOTS)), False
        offer = Offer(port.session.number, number, SLOTS, self._slot_bytes, Owner.WRITER)
        limit = Deadline(ANSWER_S, port.clock)
        self._offering = Offering(endpoint, offer, self._segment.fileno(), limit=limit)
        port.watch(self._offering)

    def answer_at(self, now: float) -> float | None:
        """Return when the answer to the offer has to be there; ``None``: none is missing."""
        return None if self._offering is None else self._offering.answer_at(now)

    def begin(self) -> None:
        """The writer is opened (again): the feeder does not have the memory."""
        self._withdraw()
        self.taken = self._barred = False

    def _withdraw(self) -> None:
        offering, self._offering = self._offering, None
        if offering is not None:
            offering.close()

    # -- the writer's thread -----------------------------------------------------------------------

    def take(self, nbytes: int) -> InsertSlot | None:
        """Return a free slot for ``nbytes``, and want memory; ``None``: use the socket."""
        if not self.taken or nbytes > self._slot_bytes or not self._free:
            self._wanted = True
            return None
        assert self._segment is not None
        number, segment = self._free[-1], self._segment
        slot = InsertSlot(number, segment.view(number * self._slot_bytes, nbytes), segment)
        del self._free[-1]  # no call from here on: Ctrl-C comes before both or after
        return slot

    def give_back(self, slot: InsertSlot) -> None:
        """Take a slot back, whose message is acknowledged or was never made."""
        if self._segment is slot.segment:
            self._free.append(slot.number)

    def lose(self) -> None:
        """A slot may not be filled again: ZeroMQ may still send what it holds.

        New memory is made when the writer is opened again.
        """
        self._lost = True

    def has(self, slot: InsertSlot) -> bool:
        """Return whether the feeder can read this slot."""
        return self.taken and self._segment is slot.segment

    def close(self) -> None:
        """Free the memory. The feeder keeps what it has mapped."""
        self.begin()
        segment, self._segment, self._free = self._segment, None, []
        if segment is not None:
            segment.close()
