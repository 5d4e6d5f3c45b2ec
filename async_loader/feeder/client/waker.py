"""What wakes the IO thread, and lets it take its turn.

# NOTE [turns]
A thread that computes in Python keeps the GIL for 5 ms (sys.getswitchinterval) after another one
wants it. A learner takes a hundred small batches in that time: its stock would be used up before
the IO thread, long awake, could ask for more. So a learner in a hurry waits until the IO thread has
had its turn: some 0.1 ms for every half stock, and 1 ms at most.
"""

from __future__ import annotations

import threading

from async_loader.feeder.client.forks import forks
from async_loader.lifecycle import AutoResetEvent, EventFd

_TURN_S = 0.001


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
        """As `wake`, and let the IO thread have its turn now. See NOTE [turns]."""
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
