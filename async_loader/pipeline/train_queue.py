"""The async train queue: finished batches, handed out in the order of their jobs. Holds results, never makes them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import Deadline, Gate
from async_loader.pipeline.batch import Drained, Failure, Loose, Nudge, Outcome, Slotted
from async_loader.source import END


class TrainQueue:
    """In-process; any thread puts, one consumer gets. What it holds lies in shared memory.

    Parameters
    ----------
    in_order : bool
        Hand out in the order of the jobs; otherwise whatever is finished first.
    """

    def __init__(self, in_order: bool = True) -> None:
        self._in_order = in_order
        self._lock = threading.RLock()  # reentrant: a signal handler may close the loader while we hold it
        self._changed = Gate()
        self._ready: dict[int, Outcome | None] = {}  # None: this job's turn is passed over
        self._urgent: deque[Failure | Nudge] = deque()
        self._next = 0
        self._beyond: set[int] = set()
        self._end: int | None = None
        self._closed = False
        self._halted = False

    def put(self, seq: int, outcome: Outcome) -> None:
        """The outcome of job ``seq``. An urgent failure overtakes everything, and the job's own turn is passed over."""
        with self._lock:
            if self._closed:
                return
            if isinstance(outcome, Failure) and outcome.urgent:
                self._urgent.append(outcome)
                self._ready[seq] = None
            else:
                self._ready[seq] = outcome
        self._changed.open()

    def nudge(self) -> None:
        """Wake the consumer so that it looks at the state of things; carries nothing."""
        with self._lock:
            if not any(isinstance(item, Nudge) for item in self._urgent):
                self._urgent.append(Nudge())
        self._changed.open()

    def end(self, seq: int) -> None:
        """There will be no job ``seq``: after the ones before it comes END."""
        with self._lock:
            self._end = seq
        self._changed.open()

    def close(self) -> None:
        """Drop what is queued; `get` raises Closed from here on."""
        with self._lock:
            self._closed = True
            dropped = list(self._ready.values())
            self._ready.clear()
            self._urgent.clear()
        self._changed.open()
        del dropped  # the slots go back outside the lock

    def pop(self) -> Slotted | Loose | Drained | None:
        """The next batch if it is ready and nothing else is to be looked at; ``None`` otherwise: then `get` says more."""
        if self._urgent or self._halted or not self._in_order:
            return None
        with self._lock:
            outcome = self._ready.get(self._next)
            if outcome is None or isinstance(outcome, Failure):
                return None
            del self._ready[self._next]
            self._next += 1
            return outcome

    def halt(self) -> None:
        """Nothing may be popped any more: whoever wants a batch is to look first."""
        self._halted = True
        self.nudge()

    def get(self, deadline: Deadline) -> Outcome | Nudge | Any:
        """The next outcome, or END, which stays the answer once reached.

        Raises
        ------
        Timeout
            Nothing came before the deadline; the next call waits for the same batch.
        Closed
        """
        while True:
            with self._lock:
                found = self._take()
                more = bool(self._ready or self._urgent or self._end is not None)
            if self._closed or (found is not None and more):
                self._changed.open()  # for whoever else waits
            if self._closed:
                raise Closed("the queue is closed")
            if found is not None:
                return found
            left = deadline.left()
            if left == 0.0:
                raise Timeout(f"no batch within the deadline: waiting for batch {self._next}")
            self._changed.pass_through(left)

    def _take(self) -> Outcome | Nudge | Any:
        if self._urgent:
            return self._urgent.popleft()
        while True:
            seq = self._next if self._in_order else next(iter(self._ready), -1)
            if seq not in self._ready:
                return END if self._end is not None and self._next >= self._end else None
            outcome = self._ready.pop(seq, None)
            self._pass(seq)
            if outcome is not None:
                return outcome

    def _pass(self, seq: int) -> None:
        """The turn of job ``seq`` is over."""
        if seq != self._next:
            self._beyond.add(seq)
            return
        self._next += 1
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1

    @property
    def passed(self) -> int:
        """The number of the first job whose turn is not over."""
        return self._next

    @property
    def beyond(self) -> tuple[int, ...]:
        """Jobs behind that one whose turn is over all the same: where the order is not kept."""
        return tuple(sorted(self._beyond))

    @property
    def depth(self) -> int:
        return len(self._ready)
