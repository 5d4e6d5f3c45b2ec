"""Tasks on their way: `Credits` bound how many are, `Supply` draws and sends them, `Producer` is
the thread for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from async_loader.errors import AsyncLoaderError, Broken, Closed, Timeout, WouldDeadlock
from async_loader.held_locks import held_lock, unheld
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import AutoResetEvent, Deadline, EndFlag, Patience, join
from async_loader.pipeline.batch import Failure, Outcome
from async_loader.pipeline.draw_place import DrawPlace
from async_loader.pipeline.task_supplier import NOTHING, SourceTasks, TaskSupplier
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import Ready


class Credits:
    """How many tasks may be under way: task ``seq`` may be drawn when fewer than ``count`` before
    it are not given back.

    No credit is taken: how many are out follows from the number of the next task, and from how many
    were given back since the beginning. To say twice that the first n were given back, after a
    signal, is to say it once.

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


class Dispatch(Protocol):
    """Where the work of a task is done."""

    def send(self, seq: int, task: object, worker: int | None, noted: Callable[[], None]) -> None:
        """Have a task done; its outcome goes to the train queue.

        ``noted`` is called if, and only if, the task is on its way, also when a signal comes
        meanwhile. Raises CannotSend, OutOfMemory.
        """


class Supply:
    """Draws the tasks of one iteration and sends them, one at a time, in the thread that calls.

    Attributes
    ----------
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
        self.seq = 0
        self.ended = False
        self.failed_draw: int | None = None
        self._dispatch = dispatch
        self._ready = ready

    @property
    def out(self) -> int:
        """Tasks under way. The one that is being drawn does not count."""
        return self.seq - self.credits.given

    def produce(self, patience: Patience) -> bool:
        """Draw a task, for which there is a credit, and send it; False: there are no more.

        In a producer thread.
        """
        supplier = self.supplier
        try:
            if not supplier.draw(patience):
                self._end()
                return False
            self._dispatch.send(self.seq, supplier.drawn, supplier.worker(self.seq), self.noted)
        except BaseException as error:  # data for the consumer: it is raised there
            if isinstance(error, Closed) and patience.end is not None and patience.end.is_set():
                raise
            self._fail(error)
        return True

    def fill(self) -> None:
        """Send tasks while there are credits. In the consumer's thread. Raises Closed."""
        supplier = self.supplier
        while not self.ended and self.credits.room(self.seq):
            try:
                if not supplier.draw(NO_WAIT):
                    self._end()
                    return
            except Exception as error:  # of what gives the order: in its turn, and the last
                with SignalsDeferred():
                    self.failed_draw = self.seq
                    self._fail(error)
                    self._end()
                return
            try:
                self._dispatch.send(self.seq, supplier.drawn, supplier.worker(self.seq), self.noted)
            except AsyncLoaderError as error:  # this task cannot travel: the others can
                if isinstance(error, Closed):
                    raise
                self._fail(error)

    def make_here(self, do: Callable[[int, Any], Outcome]) -> Outcome | None:
        """Draw a task and do it in this thread; ``None``: there are no more.

        What fails is a Failure.
        """
        if self.ended:
            return None
        seq = self.seq
        outcome: Outcome
        try:
            if not self.supplier.draw(NO_WAIT):
                self.ended = True
                return None
            outcome = do(seq, self.supplier.drawn)
        except BaseException as error:  # data for the consumer: it is raised there
            outcome = Failure(guarded(error))
            if self.supplier.drawn is NOTHING:
                self.ended, self.failed_draw = True, seq
        outcome.seq = seq
        self.noted()
        return outcome

    def produce_here(self, do: Callable[[int, Any], Outcome], patience: Patience) -> None:
        """As `produce`, in the consumer's thread: what a signal interrupts is done again by the
        next call.

        Raises
        ------
        Timeout, Closed, WouldDeadlock
            Of a wait within ``patience``: no task was drawn.
        """
        try:
            with SignalsDeferred():  # what was drawn is known
                more = self.supplier.draw(patience)
            outcome = do(self.seq, self.supplier.drawn) if more else None
        except (KeyboardInterrupt, GeneratorExit, WouldDeadlock):
            raise
        except BaseException as error:  # data for the consumer: it is raised there
            if isinstance(error, Closed | Timeout) and (
                patience.deadline.expired or (patience.end and patience.end.is_set())
            ):
                raise
            outcome = self._failure(error)
        with SignalsDeferred():
            if outcome is None:
                self._end()
            else:
                self._ready.put(self.seq, outcome)
                self.noted()

    def draw_now(self, supplier: SourceTasks, do: Callable[[int, Any], Outcome]) -> Outcome | None:
        """Draw a task and do it, in the consumer's thread, which notes that it has the outcome.

        ``None``: that needs a wait, or failed; `produce_here` and the train queue say more.
        """
        try:
            if not supplier.draw_now():
                return None
            return do(self.seq, supplier.drawn)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except (Closed, Timeout):
            return None
        except BaseException as error:  # data for the consumer: it is raised there
            self._fail(error)
            return None

    def noted(self) -> None:
        """What was drawn is on its way."""
        # in one step: no signal comes in between
        self.seq, self.supplier.drawn = self.seq + 1, NOTHING

    def _end(self) -> None:
        self.ended = True
        self._ready.end(self.seq)

    def _fail(self, error: BaseException) -> None:
        with SignalsDeferred():
            self._ready.put(self.seq, self._failure(error))
            self.noted()

    def _failure(self, error: BaseException) -> Failure:
        """Of the task that was drawn, or of the draw."""
        drawn = self.supplier.drawn
        return Failure(guarded(error), lease=drawn.lease if isinstance(drawn, Ready) else None)


NO_WAIT = Patience(deadline=Deadline(0.0))


class Producer:
    """The thread for suppliers that may wait: one task for each credit, until there are no more or
    the end flag is raised.

    Parameters
    ----------
    on_broken : callable
        Told when the thread cannot go on.

    Attributes
    ----------
    parks : bool
        The thread shall draw nothing more.
    parked : bool
        The thread draws nothing, and nothing that it drew is under way: the consumer draws, holding
        `turn`.
    """

    def __init__(
        self,
        supply: Supply,
        ready: TrainQueue,
        end: EndFlag,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._supply = supply
        self._ready = ready
        self._on_broken = on_broken
        self.parks = self.parked = False
        self.turn = held_lock(while_waiting=True)
        self._gate = AutoResetEvent()
        self._end = end
        end.on_set(self._gate.open)
        self._patience = Patience(end, on_wait=ready.wake_consumer)
        self._place: DrawPlace | None = None
        end.on_set(supply.credits.close)
        self._thread = threading.Thread(target=self._run, name="async-loader-producer", daemon=True)

    def start(self, place: DrawPlace | None = None) -> None:
        """Start the thread. With a ``place`` it draws when, and as long as, that says so."""
        self._place = place
        if place is not None:
            self.parked = self.parks = place.thread == "caller"
        self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether the supplier waits within ``draw`` at this moment."""
        return self._patience.waiting

    @property
    def waits_for(self) -> str | None:
        """The reason that the supplier gave for its wait; ``None`` while it does not wait."""
        patience = self._patience
        return patience.reason if patience.waiting else None

    def park(self, parks: bool) -> None:
        """Draw nothing more from the next task on, or draw again. Any thread, any number of
        times.
        """
        self.parks = parks
        self._gate.open()

    def _stand_by(self) -> None:
        if not self.parked:
            self.parked = True
            self._ready.wake_consumer()
        while self.parks and not self._end.is_set():
            self._gate.pass_through()
        # else a consumer that closes within its turn, in a handler of a signal, would wait for us
        if not self._end.is_set():
            with unheld(self.turn):
                self.parked = False

    def _produce(self) -> bool:
        place, patience = self._place, self._patience
        if place is None:
            return self._supply.produce(patience)
        begun, waited = perf_counter(), patience.waited_s
        more = self._supply.produce(patience)
        if place.note(perf_counter() - begun - (patience.waited_s - waited)):
            self.parks = True
        return more

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended; whether it has.

        A source that blocks for ever cannot be ended.
        """
        return join(self._thread, timeout_s)

    def _run(self) -> None:
        supply = self._supply
        try:
            while True:
                supply.credits.wait(supply.seq)
                if self.parks or self.parked:
                    self._stand_by()
                elif not self._produce():
                    return
        except Closed:
            self._ready.close()  # of a dropped loader: nothing else wakes the streamer
        except BaseException as error:  # the top of a thread: forward, never die silently
            self._on_broken(Broken(f"the producer failed: {error!r}"))
