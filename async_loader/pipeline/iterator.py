"""The consumer's end of an iteration: what stands behind `next`, for all loaders.

# NOTE [handed out once]
nothing ──find──▶ found ──read──▶ held ──(finally of the outermost __next__)──▶ nothing
                    │ pay, once (`_owed`): drop it from the queue, give its credit back,
                    │ send other tasks
Each step can be repeated. Whichever step a signal interrupts, the next call finishes the others and
hands out the same batch. `held` is emptied by the ``finally`` of the outermost ``__next__`` as it
returns: between that and the program Python handles no signal.

# NOTE [read and pay]
Where a producer thread draws tasks, a batch is read first: giving its credit back wakes the
producer, which would compete for the GIL while the batch is made. Where this thread sends the
tasks, it pays first: workers go on while the batch is read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Literal

from async_loader.errors import Closed, Timeout
from async_loader.held_locks import unheld
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, DeviceCopy, Failure, StreamEnd, Wakeup
from async_loader.pipeline.dispatch import InlineTasks, PlanDispatch, TaskDispatch
from async_loader.pipeline.iteration import Iteration
from async_loader.pipeline.job_queue import Job
from async_loader.pipeline.producer import NO_WAIT
from async_loader.pipeline.task_supplier import NOTHING, SourceTasks
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import END
from async_loader.stats import LearnerMeter, StageStats

OnError = Literal["raise", "skip", "fatal"]
_NOT_DEFERRED = contextlib.nullcontext()
_WARN_AFTER_S = 10.0
_MAX_SKIPS = 100
"""Failures in a row that ``on_error="skip"`` passes over; more than that is not an odd sample but a
broken source.
"""


class BatchIterator(Iterator[Any]):
    """One consumer at a time.

    Parameters
    ----------
    timeout_s : float | None
        For each `next`.
    warns : bool
        Without a time limit, warn once when there was no batch for ten seconds.
    finish : callable | None
        Makes what is handed out of a batch. Called in the consumer's thread; may be called again.
    fill : callable | None
        As ``finish``, and it is also given the number of batches that were handed out before.
    late : callable | None
        Called before a batch of a device is handed out by a later call than the one that filled it.

    Attributes
    ----------
    held : Any
        The batch that is handed out next, a Failure, or NOTHING.
    copy : DeviceCopy | None
        Behind ``held``, on a device; to be let go of with it.
    yielded : int
        Batches that `__next__` and `release` handed out.
    closed : bool
    exhausted : bool
        It gave all there was.
    """

    def __init__(
        self,
        engine: object,
        iteration: Iteration,
        timeout_s: float | None,
        *,
        on_error: OnError = "raise",
        warns: bool = False,
        finish: Callable[[Any], Any] | None = None,
        fill: Callable[[Any, int], Any] | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.meter = LearnerMeter()
        self.held: Any = NOTHING
        self.copy: DeviceCopy | None = None
        self.yielded = self.skipped = 0
        self.closed = self.exhausted = False
        # kept: an iteration in use outlives a loader that was dropped
        self._engine: object = engine
        self._iteration = iteration
        self._core = iteration.core
        self._queue = iteration.queue
        self._supply = iteration.supply
        self._supplier = iteration.supplier
        self._credits = iteration.credits
        self._inline = iteration.inline
        self._fills = isinstance(iteration.tasks, TaskDispatch)
        # where this thread may draw
        self._plans = iteration.tasks if isinstance(iteration.tasks, PlanDispatch) else None
        if iteration.place is None:
            self._plans = None
        self._jobs: list[Job] = (
            iteration.tasks.jobs if isinstance(iteration.tasks, TaskDispatch) else []
        )
        self._read = (
            self._core.output.hand_out if iteration.transfer is None else iteration.transfer.receive
        )
        self._on_error = on_error
        self._timeout_s = timeout_s
        self._warned = not warns
        self._finish = finish
        self._fill = fill
        self._late = late
        self._item: Any = NOTHING  # what was found and paid for, and is not read yet
        self._owed = False  # what was found is still in the queue, and its credit is not given back
        self._outcomes = 0
        # of the batch that is held, or was handed out last, until that is used
        self._lease: object = None
        self._pid = os.getpid()
        iteration.iterator = weakref.ref(self)

    def hold(self) -> None:
        """See to it that `held` is the next batch.

        Raises
        ------
        StopIteration
            There are no more, or the loader is closed.
        Closed, Broken, Timeout, WouldDeadlock
        BaseException
            What a task, a collate_fn, or the source or iterable of the tasks raised.
        """
        if self.closed:
            raise StopIteration
        try:
            if self._owed:
                self._pay()
            if self.held is not NOTHING:
                self._resume()
            if self.held is NOTHING:
                if self._lease is not None:
                    self.settle()
                if self._inline is not None:
                    self._do_here(self._inline)
                else:
                    # As a rule a batch is ready, and nothing else need be looked at; caches are
                    # cold here: every call counts.
                    item = self._item
                    if item is NOTHING:
                        item = self._draw(self._plans) if self._plans is not None else None
                        item = self._queue.front() if item is None else item
                    elif self._iteration.transfer is not None:
                        self._iteration.transfer.receive_late(item.device)
                    if item is None or os.getpid() != self._pid or not self._take(item):
                        self._hold_next(Deadline(self._timeout_s))
            if self._owed:
                self._pay()
        except Closed:
            if os.getpid() != self._pid:
                raise
            self.close()
            raise StopIteration from None
        if type(self.held) is Failure:
            # The program has the batch, as an error: it is used when it asks for another one.
            lease = self.held.lease
            if lease is not None and self._supplier.hand_out(lease):
                self._lease = lease
            try:
                raise self.held.error
            finally:
                self.held = NOTHING

    def settle(self) -> None:
        """The batch that was handed out last is used, where its source wants to know that.

        Twice does no harm.
        """
        if self._lease is not None and self.held is NOTHING:
            self._supplier.settle(self._lease)
            self._lease = None

    @property
    def interrupted(self) -> int:
        """Batches that a call had taken when it was interrupted, and that were not handed out
        since: 0 or 1.
        """
        return int(self.held is not NOTHING or self._item is not NOTHING)

    def _draw(self, plans: PlanDispatch) -> Any:
        """Draw a batch in this thread, if that needs no wait and none is queued.

        It is paid for at once. ``None``: look the long way.
        """
        iteration, supply, supplier = self._iteration, self._supply, self._supplier
        producer, queue = iteration.producer, iteration.train_queue
        if producer is None or not producer.parked or os.getpid() != self._pid:
            return None
        assert isinstance(supplier, SourceTasks)
        begun = perf_counter()
        output, transfer = self._queue, iteration.transfer
        # A plan that a signal cuts off is lost: of a source that leases its batches none may be.
        with SignalsDeferred() if supplier.leases else _NOT_DEFERRED, unheld(producer.turn):
            if not producer.parked or not queue.idle or self._core.ending:
                return None
            if transfer is not None and not (
                transfer.opened and output.idle and output.turn == supply.seq
            ):
                return None  # a batch is on its way to the device
            batch = supply.draw_now(supplier, plans.outcome)
            if batch is None:
                return None
            cost = perf_counter() - begun
            batch.seq = seq = supply.seq
            if transfer is not None:
                assert type(batch) is Batch
                sent = transfer.send_here(batch)
                if type(sent) is Failure:
                    with SignalsDeferred():  # it comes in its turn, like any other
                        queue.turn = supply.seq = seq + 1
                        supplier.drawn = NOTHING
                        transfer.output.put(sent)
                    return None
            done = self._outcomes + 1
            # No call in between: a signal finds it drawn, or held and paid for.
            self._item, self._outcomes, self._credits.given = batch, done, done
            queue.turn = output.turn = supply.seq = seq + 1
            supplier.drawn = NOTHING
        # without the copy to a device, which no thread that draws elsewhere would have to make
        iteration.note_cost(cost)
        return batch

    def _take(self, item: Any) -> bool:
        """Read a batch, and pay for it, in the order of NOTE [read and pay].

        False: nothing is held, look on.
        """
        if type(item) is StreamEnd:
            self._supplier.stream_ended(item.worker)
            self._owed = True
            return False
        if self._fills and self._item is NOTHING:
            self._item, self._owed = item, True
            self._pay()
        owed = self._item is NOTHING  # else it is paid for
        try:
            batch = self._read(item)
            if self._finish is not None:
                batch = self._finish(batch)
            if self._fill is not None:
                batch = self._fill(batch, self.meter.batches)
        except Exception as error:
            # of this batch alone, as far as can be known: the next call goes on with the next one
            failure = Failure(error, lease=item.lease)
            self.held, self._owed, self._item = failure, owed, NOTHING
            return True
        # Last of all: what Ctrl-C ends before goes back unseen.
        if item.lease is not None and not self._supplier.hand_out(item.lease):
            self._owed, self._item = owed, NOTHING
            return False
        drawn_here = not (owed or self._fills)
        batches = self.meter.batches + drawn_here
        # No call in between.
        self.copy = item.device
        self.held, self._owed, self._item, self._lease = batch, owed, NOTHING, item.lease
        self.meter.batches = batches
        item.empty()
        return True

    def _resume(self) -> None:
        """A call before this one was interrupted: what it held comes now."""
        self._core.check()
        if self._iteration.transfer is not None:
            self._iteration.transfer.receive_late(self.copy)
            if self._late is not None:
                self._late()
        if type(self.held) is Failure and self._on_error == "skip":
            self._skip()

    def _pay(self) -> None:
        """What was found is no longer the queue's, and there may be another in its place."""
        self._queue.drop()
        given = self.held is not NOTHING and type(self.held) is not Failure
        done, batches = self._outcomes + 1, self.meter.batches + given
        self._credits.give(done)
        self._outcomes, self.meter.batches, self._owed = done, batches, False
        if self._fills:
            self._jobs[:] = [job for job in self._jobs if not job.over]  # they hold slots
            if os.getpid() == self._pid:  # in a forked child the pool's lock may be held for ever
                self._supply.fill()

    def _skip(self) -> None:
        if self._owed:
            self._pay()
        lease = self.held.lease
        if lease is not None and self._supplier.hand_out(lease):
            self._supplier.settle(lease)
        self.held, self.skipped = NOTHING, self.skipped + 1

    def _hold_next(self, deadline: Deadline) -> None:
        for failed in itertools.count(1):
            item = self._next_outcome(deadline)
            if item is NOTHING:
                return
            self.held, self._owed = item, True
            if self._on_error != "skip":
                break
            self._skip()
            if failed == _MAX_SKIPS:
                item.error.add_note(
                    f"{_MAX_SKIPS} batches in a row have failed; the others were skipped"
                )
                raise item.error
        if self._on_error == "fatal":
            self._core.break_(self.held.error)

    def _next_outcome(self, deadline: Deadline) -> Any:
        """A Failure, or NOTHING once a batch is held."""
        while True:
            if self._owed:
                self._pay()
            item = self._wait(deadline) if self._item is NOTHING else self._item
            if item is END:
                self._exhaust()
            if isinstance(item, Failure):
                return item
            if self._take(item):
                return NOTHING

    def _exhaust(self) -> None:
        """There are no more.

        An endless loader stays open: `closed` says whether the user closed it.
        """
        self.exhausted = True
        if self._iteration.producer is None:
            self.close()
        raise StopIteration

    # -- work in this thread -----------------------------------------------------------------------

    def _do_here(self, tasks: InlineTasks) -> None:
        """Draw a task and do it. One that a signal interrupts is done again by the next call."""
        supply, supplier = self._supply, self._supplier
        try:
            self._core.check()
            more = supplier.draw(NO_WAIT)
        except Exception:
            self.close()
            raise
        if not more:
            self._exhaust()
        try:
            batch = tasks.do(supply.seq, supplier.drawn)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            supply.noted()
            named = guarded(error)
            if named is error:
                raise
            raise named from error
        if batch is END:
            self._exhaust()
        self.held, supplier.drawn, supply.seq = batch, NOTHING, supply.seq + 1

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, deadline: Deadline) -> Any:
        part = Deadline(_WARN_AFTER_S) if not self._warned and deadline.left() is None else deadline
        while True:
            self._core.check()
            if self._fills:
                # a signal may have cut the last one short, and nothing would be under way
                self._supply.fill()
            self._iteration.refuse_deadlock()
            try:
                self._iteration.produce_here(part)
                item = self._queue.wait(part)
            except Timeout:
                self._give_up_or_warn(deadline)
                part = deadline
                continue
            if not isinstance(item, Wakeup):
                return item
            self._queue.drop()

    def _give_up_or_warn(self, deadline: Deadline) -> None:
        self._core.check()
        if deadline.expired:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self._iteration.diagnosis()}")
        self._warned = True
        text = (
            f"no batch for {_WARN_AFTER_S:g} s: {self._iteration.diagnosis()}. next() goes on "
            "waiting; "
        )
        text += "a loader with timeout_s= raises Timeout instead"
        warnings.warn(text, RuntimeWarning, stacklevel=7)

    # -- the iteration -----------------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """Tasks, from the first on, that are not to be done again: their batch was given, or their
        error raised.

        A batch that an `interrupted` call has taken may or may not count.
        """
        passed = self._supply.seq if self._inline is not None else self._queue.passed
        failed = self._supply.failed_draw
        return passed if failed is None else min(passed, failed)

    @property
    def beyond(self) -> tuple[int, ...]:
        """Numbers of later tasks that are not to be done again either: where the order is not
        kept.
        """
        return () if self._inline is not None else self._queue.beyond

    def openings(self) -> list[Any]:
        """What the workers answered to the opening task: a `Failure` for what one raised. Waits for
        all of them.

        Raises
        ------
        Timeout
            Not all have answered in time. The next call waits for the others.
        Closed, Broken
        """
        try:
            return self._iteration.take_openings(Deadline(self._timeout_s))
        except Timeout:
            text = (
                f"not all workers have begun within {self._timeout_s:g} s: "
                f"{self._iteration.diagnosis()}"
            )
            raise Timeout(text) from None

    def stage(self) -> StageStats | None:
        """Counters of the thread behind the train queue; ``None`` without such a thread."""
        transfer = self._iteration.transfer
        return None if transfer is None else transfer.meter.snapshot(transfer.output.depth)

    def release(self) -> None:
        """What was held has been handed on. Safe to repeat."""
        if self.held is not NOTHING:
            self.held, self.copy, self.yielded = NOTHING, None, self.yielded + 1

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises
        ------
        StopIteration
            All tasks are done, or the iteration or its loader was closed.
        Timeout
            Nothing came in time. Nothing is lost: the next call waits for the same batch.
        WorkerDied
            At once, ahead of what is queued; the following call goes on with the other batches.
        Broken
            Workers cannot be started.
        BaseException
            What the task raised, or the iterable that the tasks come from. After the former the
            next call goes on.
        """
        self.hold()
        try:
            return self.held
        finally:
            self.held, self.copy, self.yielded = NOTHING, None, self.yielded + 1

    def close(self) -> None:
        """Cancel what is under way; idempotent. The workers go on."""
        if not self.closed:
            self.closed = True
            # a child has none of the threads, and locks may be held there for ever
            if os.getpid() == self._pid:
                self._iteration.close()
            self._engine = None

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end modules are being taken apart, and all ends anyway. No wait here: this may run
        # in any thread.
        if not getattr(self, "closed", True) and not finalizing() and os.getpid() == self._pid:
            self._iteration.abandon()

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
