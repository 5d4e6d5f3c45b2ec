"""What threads of a user wait at until the IO thread has news. Holds no lock while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from async_loader.errors import Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline


class Notifier:
    """Wakes everybody who waits; any number of threads on either side.

    Parameters
    ----------
    lock : threading.Lock
        Under which what they wait for changes.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._gates: list[AutoResetEvent] = []

    def ring(self) -> None:
        """Something changed. Never waits; cheap when nobody waits."""
        for gate in tuple(self._gates):
            gate.open()

    def until(self, attempt: Callable[[], bool], deadline: Deadline, why: Callable[[], str]) -> None:
        """Return when ``attempt``, called under the lock, says so.

        Raises
        ------
        Timeout
            Saying ``why``.
        """
        gate = AutoResetEvent()
        try:
            self._gates.append(gate)
            while True:
                with self._lock:
                    if attempt():
                        return
                if deadline.expired:
                    raise Timeout(why())
                gate.pass_through(deadline.left())
        finally:
            if gate in self._gates:  # not, if Ctrl-C came before it was
                self._gates.remove(gate)
