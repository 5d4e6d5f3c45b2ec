"""Wakes user threads when the IO thread has changed something, and the other way round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from async_loader import process_hooks
from async_loader.errors import Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline, EventFd

_TURN_S = 0.001


class _Forks:
    """Detects forks by a number: every append checks it, so it must not be a system call."""

    generation = 0

    def born(self) -> None:
        self.generation += 1


forks = _Forks()
process_hooks.at_fork(after_in_child=forks.born)


class Waker:
    """Any thread wakes; the IO thread waits on `fileno`, calls `clear`, and `turned` once a round.

    In a forked process all calls do nothing: there is no IO thread.
    """

    def __init__(self) -> None:
        self._bell, self._rung = EventFd(), False
        self._lock = threading.RLock()  # finalizers wake too
        self._turned = AutoResetEvent()
        self._generation = forks.generation
        self.turned = self._turned.open
        self.fileno = self._bell.fileno

    def wake(self) -> bool:
        """Wake the IO thread. Return False if it is about to wake up already."""
        if not self._rung and forks.generation == self._generation:
            with self._lock:
                if not self._rung:
                    self._rung = True
                    self._bell.ring()
                    return True
        return False

    def yield_to_io(self) -> None:
        """As `wake`, and let the IO thread run: a busy thread would keep the interpreter."""
        self._turned.pass_through(0.0)
        if self.wake():
            self._turned.pass_through(_TURN_S)

    def clear(self, rang: bool) -> None:
        """Note that the thread is awake. Before it looks: later changes wake it again."""
        if rang:
            self._bell.clear()
        self._rung = False  # also if a call of `wake` was cut short

    def close(self) -> None:
        """Close the descriptor; later calls of `wake` do nothing."""
        with self._lock:
            self._rung = True
            self._bell.close()


class Notifier:
    """Wakes all waiting threads; any number of threads on either side.

    Parameters
    ----------
    lock : Lock or RLock
        Under which the awaited state changes.
    """

    def __init__(self, lock: AbstractContextManager[bool, None]) -> None:
        self._lock = lock
        self._gates: list[AutoResetEvent] = []

    def ring(self) -> None:
        """Wake all waiting threads. Never waits; cheap when no thread waits."""
        for gate in tuple(self._gates):
            gate.open()

    def until(
        self, attempt: Callable[[], bool], deadline: Deadline, why: Callable[[], str]
    ) -> None:
        """Return when ``attempt``, called under the lock, returns True.

        Raises
        ------
        Timeout
            With the text of ``why``.
        """
        gate = AutoResetEvent()
        self._gates.append(gate)
        try:
            while True:
                with self._lock:
                    if attempt():
                        return
                if deadline.expired:
                    raise Timeout(why())
                gate.pass_through(deadline.left())
        finally:
            self._gates.remove(gate)
