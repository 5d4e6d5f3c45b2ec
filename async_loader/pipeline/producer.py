"""Tasks on their way: `Supply` draws them and has them done, in the consumer's thread or in one of
its own, the producer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from async_loader.errors import Broken, Closed, Timeout, WouldDeadlock
from async_loader.lifecycle import (
    AutoResetEvent,
    Deadline,
    EndFlag,
    Patience,
    WaitClosed,
    WaitTimeout,
)
from async_loader.pipeline.batch import Failure, Outcome, StreamEnd
from async_loader.pipeline.tasks import (
    InlineTasks,
    PlanDispatch,
    TaskDispatch,
    TaskSupplier,
)
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import END

NO_WAIT = Patience(deadline=Deadline(0.0))

HAND_OVER_S = 250e-6
"""What a batch that another thread made costs a learner on the CPU, beyond the work on it: two
wake-ups, cold caches, and waits for Python's lock. Measured by the row "dqn" of the benchmarks.
"""
_FIRST, _WINDOW = 2, 16


class DrawCosts:
    """What batches cost that the caller of `next` draws. The first ones do not count: they compile
    kernels and fault in pages.
    """

    def __init__(self, hand_over_s: float = HAND_OVER_S) -> None:
        self._hand_over_s = hand_over_s
        self._costs: list[float] = []
        self._ignored = _FIRST

    def note(self, seconds: float) -> bool:
        """Count the work on a batch, without waits; return whether another thread should draw.

        That is, all but one of the last batches cost more than a hand-over: what other programs,
        or a thread that holds Python's lock, add to some of them is no work.
        """
        if self._ignored:
            self._ignored -= 1
            return False
        self._costs.append(seconds)
        if len(self._costs) < _WINDOW:
            return False
        cost = sorted(self._costs)[1]
        self._costs.clear()
        return cost > self._hand_over_s


class Supply:
    """Draws the tasks of one iteration and has them done, one at a time, in the thread that calls.

    Task ``seq`` may be drawn when fewer than ``count`` before it are not given back. Giving back
    neither blocks nor makes a system call: those let go of the GIL, and the producer that was just
    woken would take it and keep the learner waiting inside `next`. So the producer waits on a bare
    lock, not on a descriptor.

    Attributes
    ----------
    turn : Lock
        Held by the thread that draws.
    seq : int
        The number of the next task.
    given : int
        Tasks whose credits were given back.
    ended : bool
        There are no more.
    """

    def __init__(
        self,
        supplier: TaskSupplier,
        dispatch: InlineTasks | TaskDispatch | PlanDispatch,
        count: int,
        ready: TrainQueue,
    ) -> None:
        self.supplier = supplier
        self.turn = threading.Lock()
        self.seq = self.given = 0
        self.ended = False
        self._dispatch = dispatch
        self._count = count
        self._ready = ready
        self._closed = False
        self._gate = AutoResetEvent()
        self._waiting = False

    # -- credits -----------------------------------------------------------------------------------

    @property
    def room(self) -> bool:
        """Whether the next task may be drawn now. Raises Closed after `close`."""
        if self._closed:
            raise Closed("closed")
        return self.seq - self.given < self._count

    def wait(self, deadline: Deadline) -> None:
        """Wait until the next task may be drawn. One thread waits. Raises Closed, Timeout."""
        while not self.room:
            left = deadline.left()
            if left == 0.0:
                raise Timeout("no credit was given back")
            self._waiting = True
            # Looked at again after `_waiting` was set, as `give` looks at it after counting: one of
            # the two sees the other.
            if not self.room:
                self._gate.pass_through(left)
            self._waiting = False

    def give(self, given: int) -> None:
        """``given`` credits were given back so far, this one included."""
        self.given = given
        if self._waiting:
            self._gate.open()

    def close(self) -> None:
        """A thread that waits, or asks later, gets Closed. Takes no lock: it may run in a
        finalizer.
        """
        self._closed = True
        self._gate.open()

    # -- tasks -------------------------------------------------------------------------------------

    def draw(self, patience: Patience, *, here: bool = False) -> Outcome | Any:
        """Draw a task, for which there is a credit, and have it done.

        Parameters
        ----------
        here : bool
            In the consumer's thread.

        Returns
        -------
        Outcome | None | END
            A `Failure` for what was raised; ``None``: workers do the task.

        Raises
        ------
        Timeout, Closed, WouldDeadlock
            Of a wait within ``patience``: no task was drawn.
        KeyboardInterrupt
            In the consumer's thread; a task that was drawn is lost.
        """
        with self.turn:
            if self.ended:
                return END
            seq, task = self.seq, None
            try:
                task = self.supplier.draw(patience)
                if task is END:
                    self.ended = True
                    return END
                self._go_on(seq + 1)
                return self._dispatch.do(seq, task, self.supplier.worker(seq, task))
            except BaseException as error:
                drawn = self.seq > seq
                if _is_of_the_call(error, patience, here):
                    if drawn:
                        self._ready.put(seq, None)
                    raise
                if not drawn:
                    self._go_on(seq + 1)
                    self.ended = self.supplier.ends_by_errors
                return Failure(guarded(error), seq=seq, lease=getattr(task, "lease", None))

    def _go_on(self, seq: int) -> None:
        self.seq = seq
        self.supplier.note(seq)

    def begin_at(self, seq: int) -> None:
        """The number of the first task. Before anything is drawn."""
        self.given = seq
        self._go_on(seq)

    def produce(self, patience: Patience, *, here: bool = False) -> None:
        """As `draw`; what it returns goes to the train queue."""
        seq = self.seq
        outcome = self.draw(patience, here=here)
        if outcome is not None and outcome is not END:
            self._ready.put(seq, outcome)
        if self.ended:
            self._ready.end(self.seq)

    def get(self, deadline: Deadline) -> Any:
        """The next outcome, or END, for a transfer thread that takes from here where the work is
        done inline: a producer would be a second hand-over beside a busy learner.

        Raises
        ------
        Closed, Timeout
        """
        self.wait(deadline)
        seq = self.seq
        outcome = self.draw(NO_WAIT)
        if outcome is END or isinstance(outcome, StreamEnd):
            return END
        outcome.seq = seq
        return outcome

    def fill(self) -> None:
        """Draw tasks while there are credits. In the consumer's thread. Raises Closed."""
        while not self.ended and self.room:
            self.produce(NO_WAIT, here=True)

    def producer(
        self, patience: Patience, end: EndFlag, on_broken: Callable[[BaseException], None]
    ) -> threading.Thread:
        """The thread for suppliers that may wait: one task for each credit, until there are no more
        or the end flag is raised. ``on_broken`` is told when it cannot go on.
        """

        def run() -> None:
            try:
                while not self.ended:
                    self.wait(Deadline(None))
                    self.produce(patience)
            except Closed:
                self._ready.close()  # of a dropped loader: nothing else wakes the streamer
            except BaseException as error:  # the top of a thread: forward, never die silently
                on_broken(Broken(f"the producer failed: {error!r}"))

        end.on_set(self.close)
        return threading.Thread(target=run, name="async-loader-producer", daemon=True)


def _is_of_the_call(error: BaseException, patience: Patience, here: bool) -> bool:
    """Whether it ends the call; otherwise it is data for the consumer, raised in its turn."""
    if isinstance(error, WaitClosed | WaitTimeout):
        return True
    if isinstance(error, WouldDeadlock):
        return here and patience is not NO_WAIT
    return here and isinstance(error, KeyboardInterrupt | GeneratorExit)
