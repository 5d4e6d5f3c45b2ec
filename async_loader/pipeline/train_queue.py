"""The queue of finished batches, in the order of their tasks: the async train queue, and behind a
streamer the cuda queue. Holds results, never makes them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from async_loader.errors import Broken, Closed, Timeout
from async_loader.lifecycle import AutoResetEvent, Deadline
from async_loader.pipeline.batch import Failure, Outcome
from async_loader.source import END


class TrainQueue:
    """In-process; any thread puts and never waits (credits bound what is under way), one thread
    gets. Batches lie in shared memory, or on a device.

    It answers, first match: Closed, Broken, urgent failures, outcomes in their order, END for ever.

    Parameters
    ----------
    in_order : bool
        Hand out in the order of the tasks; otherwise whatever is finished first.

    Attributes
    ----------
    turn : int
        The number of the first task whose turn is not over.
    """

    def __init__(self, in_order: bool = True) -> None:
        self.turn = 0
        self.in_order = in_order
        # reentrant: a finalizer may close the loader while this thread holds it
        self._lock = threading.RLock()
        self._changed = AutoResetEvent()
        self._ready: dict[int, Outcome | None] = {}  # None: this task's turn is passed over
        self._beyond: set[int] = set()
        self._urgent: deque[Failure] = deque()
        self._end: int | None = None
        self._woken = self._closed = False
        self._broken: Broken | None = None

    def put(self, seq: int, outcome: Outcome | None) -> None:
        """The outcome of task ``seq``; ``None``: it has none.

        An urgent failure overtakes everything, and the task's own turn is passed over.
        """
        with self._lock:
            if self._closed or seq < self.turn or seq in self._beyond:
                return
            if outcome is not None:
                outcome.seq = seq
            if isinstance(outcome, Failure) and outcome.urgent:
                self._urgent.append(outcome)
                outcome = None
            self._ready[seq] = outcome
        self._changed.open()

    def end(self, seq: int = 0) -> None:
        """There is no task ``seq``: END comes after those before it, and after what was put."""
        with self._lock:
            self._end = seq
        self._changed.open()

    def wake(self) -> None:
        """Let `get` return ``None``, so that its caller looks at the state of things."""
        self._woken = True
        self._changed.open()

    def break_(self, error: Broken) -> None:
        """Nothing more can come: `get` raises this from here on. The first reason stays."""
        with self._lock:
            self._broken = self._broken or error
        self._changed.open()

    def close(self) -> None:
        """Drop what is queued; `get` raises Closed from here on."""
        with self._lock:
            self._closed = True
            dropped, self._ready = self._ready, {}
            self._urgent.clear()
        self._changed.open()
        del dropped  # the slots go back outside the lock

    def take(self) -> Outcome | Any:
        """Take out the next outcome, or END; ``None``: there is neither. Does not wait.

        Raises
        ------
        Closed, Broken
        """
        with self._lock:
            self.check()
            if self._urgent:
                return self._urgent.popleft()
            while True:
                seq = self.turn if self.in_order else next(iter(self._ready), -1)
                if seq not in self._ready:
                    return END if self._end is not None and self.turn >= self._end else None
                # first: what a signal leaves of the rest does no harm
                outcome, self._ready[seq] = self._ready[seq], None
                self._pass(seq)
                del self._ready[seq]
                if outcome is not None:
                    return outcome

    def get(self, deadline: Deadline) -> Outcome | Any:
        """As `take`, and waits. ``None``: `wake` was called.

        Raises
        ------
        Timeout
            Nothing came before the deadline; the next call waits for the same batch.
        Closed, Broken
        """
        while True:
            outcome = self.take()
            if outcome is not None:
                return outcome
            if self._woken:
                self._woken = False
                return None
            left = deadline.left()
            if left == 0.0:
                raise Timeout(f"no batch within the deadline: waiting for batch {self.turn}")
            self._changed.pass_through(left)

    def check(self) -> None:
        """Raise Closed or Broken if nothing more can come."""
        if self._closed or self._broken is not None:
            self._changed.open()  # for other threads that wait
        if self._closed:
            raise Closed("the queue is closed")
        if self._broken is not None:
            # A new one each time: raising the same object again would grow its traceback.
            raise Broken(*self._broken.args) from self._broken.__cause__

    def _pass(self, seq: int) -> None:
        """The turn of task ``seq`` is over."""
        if seq > self.turn:
            self._beyond.add(seq)
        if seq != self.turn:
            return
        after = seq + 1
        while after in self._beyond:
            after += 1
        self.turn = after
        if self._beyond:
            self._beyond = {seq for seq in self._beyond if seq > after}

    @property
    def given(self) -> int:
        """How many turns are over."""
        return self.turn + len(self._beyond)

    @property
    def depth(self) -> int:
        """Outcomes that wait."""
        return len(self._ready)
