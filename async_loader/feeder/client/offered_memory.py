"""Memory of the learner's process that the feeder writes batches into: made, offered, forgotten.

# NOTE [shared memory]
A batch's size is known once the feeder has said what its rows are. Then the memory is made and
offered over a unix socket; batches are asked for once the feeder has taken it. Each opening of a
reader has memory of its own: an earlier feeder may still write into the old one.
"""

from __future__ import annotations

from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.slots import ReaderSlots
from async_loader.feeder.shared import ANSWER_S, Offering
from async_loader.lifecycle import Deadline
from async_loader.schema import Schema

FAILURES = "batches of table %r from %s come over its socket, not in shared memory: %s"
"""What is logged when memory could not be offered: table, address, reason."""


class OfferedMemory:
    """The memory of one opening of a reader. IO thread, but for what `ReaderSlots` says otherwise.

    Attributes
    ----------
    slots : ReaderSlots | None
        ``None``: there is no memory.
    """

    def __init__(self) -> None:
        self.slots: ReaderSlots | None = None
        self._offering: Offering | None = None

    @property
    def under_offer(self) -> bool:
        """Whether the feeder has not answered yet."""
        return self._offering is not None

    def offer(
        self, schema: Schema, rows: int, ahead: int, spare: int, number: int, port: IoThread
    ) -> None:
        """Make memory for reader ``number`` and offer it.

        Raises
        ------
        Unsupported, OutOfMemory, Malformed, Broken, OSError
        """
        endpoint = endpoint_of(port)
        assert endpoint is not None
        self.forget()
        slots = self.slots = ReaderSlots(schema, rows, ahead, spare)
        offer = slots.offer(port.session.number, number)
        limit = Deadline(ANSWER_S, port.clock)
        self._offering = Offering(endpoint, offer, slots.fileno(), limit=limit)
        port.watch(self._offering)

    def taken(self) -> bool:
        """Return whether the feeder has taken the offer.

        Raises what it was refused for, and Timeout.
        """
        assert self._offering is not None
        if not self._offering.taken():
            return False
        self._offering.close()
        self._offering = None
        return True

    def answer_at(self, now: float) -> float | None:
        """Return when the answer to the offer has to be there; ``None``: none is missing."""
        return None if self._offering is None else self._offering.answer_at(now)

    def forget(self) -> None:
        """Withdraw the offer and close the memory. Batches in user code keep theirs."""
        slots, self.slots = self.slots, None
        offering, self._offering = self._offering, None
        if offering is not None:
            offering.close()
        if slots is not None:
            slots.close()


def endpoint_of(port: IoThread) -> str | None:
    """Return where memory is offered; ``None`` if the feeder takes none."""
    welcome = port.session.welcome
    return None if welcome is None else welcome.memory_endpoint
