"""Wakes user threads when the IO thread has changed something."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from async_loader.errors import Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline


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
