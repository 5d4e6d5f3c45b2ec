"""How many batches may be under way: the producer takes a ticket for each, the consumer gives it back with `next`."""

from __future__ import annotations

from collections import deque

from async_loader.errors import Closed
from async_loader.lifecycle import EndFlag, Gate


class Tickets:
    """``count`` tickets. One thread takes, any thread gives back.

    Giving back neither blocks nor makes a system call: those let go of the GIL, and the producer that was just woken
    would take it and keep the learner waiting inside `next`. So the producer waits on a bare lock, not on a descriptor.
    """

    def __init__(self, count: int, end: EndFlag) -> None:
        self._tickets: deque[None] = deque([None] * count)
        self._end = end
        self._gate = Gate()
        self._waiting = False
        end.on_set(self._gate.open)

    def take(self) -> None:
        """Wait for a ticket.

        Raises
        ------
        Closed
            The end flag was raised.
        """
        while not self._try():
            self._waiting = True
            # Looked at again after `_waiting` was set, as `give` looks at it after adding: one of the two sees the other.
            if not self._tickets and not self._end.is_set():
                self._gate.pass_through()
            self._waiting = False

    def _try(self) -> bool:
        if self._end.is_set():
            raise Closed("closed")
        try:
            self._tickets.popleft()
        except IndexError:
            return False
        return True

    def give(self) -> None:
        self._tickets.append(None)
        if self._waiting:
            self._gate.open()
