"""How many batches may be under way: the producer takes a ticket for each, the consumer gives it back with `next`."""

from __future__ import annotations

from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline, EndFlag


class Credits:
    """``count`` tickets. One thread takes, one thread gives back.

    Both are counted from the beginning, not added and taken away: to say twice that the first n were given back, after a
    signal came in between, is to say it once.

    Giving back neither blocks nor makes a system call: those let go of the GIL, and the producer that was just woken
    would take it and keep the learner waiting inside `next`. So the producer waits on a bare lock, not on a descriptor.
    """

    def __init__(self, count: int, end: EndFlag | None = None) -> None:
        self._count = count
        self._end = end
        self._closed = False
        self._taken = self._given = 0
        self._gate = AutoResetEvent()
        self._waiting = False
        if end is not None:
            end.on_set(self._gate.open)

    @property
    def out(self) -> int:
        """Batches under way: tickets that were taken and not given back."""
        return self._taken - self._given

    @property
    def given(self) -> int:
        """How many were given back so far."""
        return self._given

    def take(self, deadline: Deadline | None = None) -> None:
        """Wait for a ticket.

        Raises
        ------
        Closed
            The end flag was raised, or `close` was called.
        Timeout
        """
        while not self._try():
            left = None if deadline is None else deadline.left()
            if left == 0.0:
                raise Timeout("no ticket was given back")
            self._waiting = True
            # Looked at again after `_waiting` was set, as `give` looks at it after counting: one of the two sees the other.
            if self.out >= self._count and not self._ended:
                self._gate.pass_through(left)
            self._waiting = False

    @property
    def _ended(self) -> bool:
        return self._closed or (self._end is not None and self._end.is_set())

    def _try(self) -> bool:
        if self._ended:
            raise Closed("closed")
        if self._taken - self._given >= self._count:
            return False
        self._taken += 1
        return True

    def give(self, given: int) -> None:
        """``given`` tickets were given back so far, this one included."""
        self._given = given
        if self._waiting:
            self._gate.open()

    def close(self) -> None:
        """A thread that waits for a ticket, or asks for one later, gets Closed."""
        self._closed = True
        self._gate.open()
