"""Tasks on their way: `Credits` bound how many are, `Supply` draws them and has them done, in the
consumer's thread or in that of a `Producer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from async_loader.errors import Broken, Closed, Timeout, WouldDeadlock
from async_loader.lifecycle import AutoResetEvent, Deadline, EndFlag, Patience, join
from async_loader.pipeline.batch import Failure, Outcome
from async_loader.pipeline.task_supplier import TaskSupplier
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import END


class Credits:
    """How many tasks may be under way: task ``seq`` may be drawn when fewer than ``count`` before
    it are not given back.

    No credit is taken: how many are out follows from the number of the next task, and from how many
    were given back since the beginning.

    Giving back neither blocks nor makes a system call: those let go of the GIL, and the producer
    that was just woken would take it and keep the learner waiting inside `next`. So the producer
    waits on a bare lock, not on a descriptor.
    """

    def __init__(self, count: int) -> None:
        self.given = 0
        self._count = count
        self._closed = False
        self._gate = AutoResetEvent()
        self._waiting = False

    def room(self, seq: int) -> bool:
        """Whether task ``seq`` may be drawn now. Raises Closed after `close`."""
        if self._closed:
            raise Closed("closed")
        return seq - self.given < self._count

    def wait(self, seq: int, deadline: Deadline | None = None) -> None:
        """Wait until task ``seq`` may be drawn. One thread waits.

        Raises
        ------
        Closed, Timeout
        """
        while not self.room(seq):
            left = None if deadline is None else deadline.left()
            if left == 0.0:
                raise Timeout("no credit was given back")
            self._waiting = True
            # Looked at again after `_waiting` was set, as `give` looks at it after counting: one of
            # the two sees the other.
            if seq - self.given >= self._count and not self._closed:
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


class Dispatch(Protocol):
    """Where the work of a task is done."""

    def do(self, seq: int, task: Any, worker: int | None) -> Outcome | None:
        """Do a task in this thread; or send it to workers, and return ``None``: its outcome goes
        to the train queue. Raises what the work raises, CannotSend, OutOfMemory.
        """


class Supply:
    """Draws the tasks of one iteration and has them done, one at a time, in the thread that calls.

    Attributes
    ----------
    turn : Lock
        Held by the thread that draws.
    seq : int
        The number of the next task.
    ended : bool
        There are no more.
    failed_draw : int | None
        The number that drawing failed at: it has no task.
    """

    def __init__(
        self, supplier: TaskSupplier, dispatch: Dispatch, credits: Credits, ready: TrainQueue
    ) -> None:
        self.supplier = supplier
        self.credits = credits
        self.turn = threading.Lock()
        self.seq = 0
        self.ended = False
        self.failed_draw: int | None = None
        self._dispatch = dispatch
        self._ready = ready

    @property
    def out(self) -> int:
        """Tasks under way. The one that is being drawn does not count."""
        return self.seq - self.credits.given

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
                self.seq = seq + 1
                return self._dispatch.do(seq, task, self.supplier.worker(seq, task))
            except BaseException as error:
                drawn = self.seq > seq
                if _is_of_the_call(error, patience, here):
                    if drawn:
                        self._ready.put(seq, None)
                    raise
                if not drawn:
                    self.seq = seq + 1
                    if self.supplier.ends_by_errors:
                        self.ended, self.failed_draw = True, seq
                failure = Failure(guarded(error), lease=getattr(task, "lease", None))
                failure.seq = seq
                return failure

    def produce(self, patience: Patience, *, here: bool = False) -> None:
        """As `draw`; what it returns goes to the train queue."""
        seq = self.seq
        outcome = self.draw(patience, here=here)
        if outcome is not None and outcome is not END:
            self._ready.put(seq, outcome)
        if self.ended:
            self._ready.end(self.seq)

    def fill(self) -> None:
        """Draw tasks while there are credits. In the consumer's thread. Raises Closed."""
        while not self.ended and self.credits.room(self.seq):
            self.produce(NO_WAIT, here=True)


def _is_of_the_call(error: BaseException, patience: Patience, here: bool) -> bool:
    """Whether it ends the call; otherwise it is data for the consumer, raised in its turn."""
    if isinstance(error, Closed | Timeout):
        return patience.deadline.expired or (patience.end is not None and patience.end.is_set())
    if isinstance(error, WouldDeadlock):
        return here and patience is not NO_WAIT
    return here and isinstance(error, KeyboardInterrupt | GeneratorExit)


class Producer:
    """The thread for suppliers that may wait: one task for each credit, until there are no more or
    the end flag is raised.

    Parameters
    ----------
    on_wait : callable
        Called before each wait of the supplier.
    on_broken : callable
        Told when the thread cannot go on.

    Attributes
    ----------
    patience : Patience
        Of the supplier's waits.
    """

    def __init__(
        self,
        supply: Supply,
        ready: TrainQueue,
        end: EndFlag,
        on_wait: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.patience = Patience(end, on_wait=on_wait)
        self._supply = supply
        self._ready = ready
        self._on_broken = on_broken
        end.on_set(supply.credits.close)
        self._thread = threading.Thread(target=self._run, name="async-loader-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended; whether it has.

        A source that blocks for ever cannot be ended.
        """
        return join(self._thread, timeout_s)

    def _run(self) -> None:
        supply = self._supply
        try:
            while not supply.ended:
                supply.credits.wait(supply.seq)
                supply.produce(self.patience)
        except Closed:
            self._ready.close()  # of a dropped loader: nothing else wakes the streamer
        except BaseException as error:  # the top of a thread: forward, never die silently
            self._on_broken(Broken(f"the producer failed: {error!r}"))
