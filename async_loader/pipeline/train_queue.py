"""The async train queue: finished batches, handed out in the order of their jobs.

Holds results, never makes them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from async_loader.errors import Closed, Timeout
from async_loader.held_locks import check_wait
from async_loader.lifecycle import AutoResetEvent, Deadline
from async_loader.pipeline.batch import Batch, Failure, Outcome, StreamEnd, Wakeup
from async_loader.source import END

_NOTHING: Any = object()


class Progress:
    """Which turns are over: all before one number, and some behind it where the order is not
    kept.

    Attributes
    ----------
    turn : int
        The number of the first task whose turn is not over.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._beyond: set[int] = set()

    def _pass(self, seq: int) -> None:
        """The turn of task ``seq`` is over. Safe to repeat."""
        if seq > self.turn:
            self._beyond.add(seq)
        elif seq == self.turn:
            after = seq + 1
            while after in self._beyond:
                after += 1
            self.turn = after
        if self._beyond:
            self._beyond.difference_update(range(seq, self.turn))

    @property
    def passed(self) -> int:
        """The number of the first task whose turn is not over."""
        return self.turn

    @property
    def beyond(self) -> tuple[int, ...]:
        """Tasks behind that one whose turn is over all the same."""
        return tuple(sorted(seq for seq in self._beyond if seq > self.turn))


class TrainQueue(Progress):
    """In-process; any thread puts, one consumer takes. What it holds lies in shared memory.

    # NOTE [taken once]
    What the consumer finds stays in the queue until it says `drop`. A consumer that a signal
    interrupts in between finds the same again: nothing is lost between the queue and the program.

    Parameters
    ----------
    in_order : bool
        Hand out in the order of the jobs; otherwise whatever is finished first.
    """

    def __init__(self, in_order: bool = True) -> None:
        super().__init__()
        self._in_order = in_order
        # reentrant: a signal handler may close the loader while we hold it
        self._lock = threading.RLock()
        self._changed = AutoResetEvent()
        self._ready: dict[int, Outcome | None] = {}  # None: this job's turn is passed over
        self._urgent: deque[Failure | Wakeup] = deque()
        # what `drop` lets go of, and whose turn it is: -1 for what is urgent
        self._found: Any = _NOTHING
        self._found_seq = -1
        self._end: int | None = None
        self._closed = False
        self._halted = False

    def put(self, seq: int, outcome: Outcome) -> None:
        """The outcome of job ``seq``.

        An urgent failure overtakes everything, and the job's own turn is passed over.
        """
        outcome.seq = seq
        with self._lock:
            if self._closed:
                return
            if isinstance(outcome, Failure) and outcome.urgent:
                self._urgent.append(outcome)
                self._ready[seq] = None
            else:
                self._ready[seq] = outcome
        self._changed.open()

    def wake_consumer(self) -> None:
        """Wake the consumer so that it looks at the state of things; carries nothing."""
        with self._lock:
            if not any(isinstance(item, Wakeup) for item in self._urgent):
                self._urgent.append(Wakeup())
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
            dropped = [*self._ready.values(), self._found]
            self._ready.clear()
            self._urgent.clear()
            self._found = _NOTHING
        self._changed.open()
        del dropped  # the slots go back outside the lock

    def front(self) -> Batch | StreamEnd | None:
        """Return the next batch if it is ready and nothing else is to be looked at, else ``None``:
        `wait` says more.

        It stays in the queue until `drop`. The consumer's thread; takes no lock.
        """
        if self._urgent or self._halted or not self._in_order:
            return None
        if self._found is None:
            self.drop()  # a turn that was being passed over when a signal came
        seq = self.turn
        outcome = self._ready.get(seq)
        if outcome is None or isinstance(outcome, Failure):
            return None
        self._found, self._found_seq = outcome, seq
        return outcome

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, and nothing else is to be looked at."""
        return not (self._ready or self._urgent or self._halted or self._closed)

    def drop(self) -> None:
        """Let go of what `front` or `wait` found last.

        Safe to repeat: a call that was interrupted is made again.
        """
        found, seq = self._found, self._found_seq
        if found is _NOTHING:
            return
        if seq < 0:
            if self._urgent and self._urgent[0] is found:
                self._urgent.popleft()
            self._found = _NOTHING
        else:
            self._ready.pop(seq, None)
            self._pass(seq)
            self._found = _NOTHING

    def halt(self) -> None:
        """Nothing may be taken any more: the consumer is to look at the state first."""
        self._halted = True
        self.wake_consumer()

    def wait(self, deadline: Deadline) -> Outcome | Wakeup | Any:
        """Return the next outcome, a Wakeup, or END, which stays the answer once reached. It stays
        in the queue until `drop`.

        Raises
        ------
        Timeout
            Nothing came before the deadline; the next call waits for the same batch.
        Closed
        """
        return self._wait(deadline, take=False)

    def get(self, deadline: Deadline) -> Outcome | Wakeup | Any:
        """As `wait`, and takes what it returns out of the queue.

        For threads in which no signal is handled; any number.
        """
        return self._wait(deadline, take=True)

    def _wait(self, deadline: Deadline, *, take: bool) -> Outcome | Wakeup | Any:
        while True:
            with self._lock:
                found = self._look()
                if take and found is not None:
                    self.drop()
                more = bool(self._ready or self._urgent or self._end is not None)
            if self._closed or (found is not None and more and take):
                self._changed.open()  # for other threads that wait
            if self._closed:
                raise Closed("the queue is closed")
            if found is not None:
                return found
            left = deadline.left()
            if left == 0.0:
                raise Timeout(f"no batch within the deadline: waiting for batch {self.turn}")
            check_wait()
            self._changed.pass_through(left)

    def _look(self) -> Outcome | Wakeup | Any:
        """What comes next, without a change to the queue but for turns that are passed over."""
        if self._found is None:
            self.drop()  # of a call that was interrupted
        if self._urgent:
            self._found, self._found_seq = self._urgent[0], -1
            return self._found
        while True:
            seq = self.turn if self._in_order else next(iter(self._ready), -1)
            if seq not in self._ready:
                self._found = _NOTHING
                return END if self._end is not None and self.turn >= self._end else None
            self._found, self._found_seq = self._ready[seq], seq
            if self._found is not None:
                return self._found
            self.drop()

    @property
    def depth(self) -> int:
        return len(self._ready)
