"""The consumer's end of an iteration: what stands behind `next`, for all loaders.

# NOTE [read and pay]
Where a producer thread draws tasks, a batch is read first: giving its credit back wakes the
producer, which would compete for the GIL while the batch is made. Where this thread sends the
tasks, it pays first: workers go on while the batch is read.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Literal, NoReturn

from async_loader.errors import Closed, Timeout
from async_loader.lifecycle import Deadline, Patience
from async_loader.pipeline.batch import Batch, Failure, StreamEnd
from async_loader.pipeline.iteration import Iteration
from async_loader.pipeline.producer import NO_WAIT
from async_loader.pipeline.tasks import InlineTasks
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import END
from async_loader.stats import LearnerMeter, StageStats

OnError = Literal["raise", "skip", "fatal"]
_DROPPED: Any = object()
_WARN_AFTER_S = 10.0
_MAX_SKIPS = 100
"""Failures in a row that ``on_error="skip"`` passes over; more than that is not an odd sample but a
broken source.
"""


class BatchIterator(Iterator[Any]):
    """One consumer at a time.

    A call that a signal ends loses the batch that it had taken, and the task that it was sending.

    Parameters
    ----------
    timeout_s : float | None
        For each `next`.
    warns : bool
        Without a time limit, warn once when there was no batch for ten seconds.
    finish : callable | None
        Makes what is handed out of a batch. Called in the consumer's thread.
    fill : callable | None
        As ``finish``, and it is also given the number of batches that were handed out before.

    Attributes
    ----------
    yielded : int
        Batches that were handed out.
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
    ) -> None:
        self.meter = LearnerMeter()
        self.yielded = self.skipped = 0
        self.closed = self.exhausted = False
        # kept: an iteration in use outlives a loader that was dropped
        self._engine: object = engine
        self._iteration = iteration
        self._queue = iteration.queue
        self._supply = iteration.supply
        transfer = iteration.transfer
        self._read = iteration.core.output.hand_out if transfer is None else transfer.receive
        self._on_error = on_error
        self._timeout_s = timeout_s
        self._warned = not warns
        self._finish = finish
        self._fill = fill
        self._lease: object = None  # of the batch that was handed out last, until that is used
        self._at_once = Patience(iteration.core.end, Deadline(0.0))
        self._pid = os.getpid()
        iteration.iterator = weakref.ref(self)

    def __next__(self) -> Any:
        """The next batch.

        Raises
        ------
        StopIteration
            All tasks are done, or the iteration or its loader was closed.
        Timeout
            Nothing came in time. The next call waits for the same batch.
        WouldDeadlock
            Only the calling thread could end the wait.
        WorkerDied
            At once, ahead of what is queued; the following call goes on with the other batches.
        Broken
            Workers cannot be started.
        BaseException
            What the task raised, or the iterable that the tasks come from. After the former the
            next call goes on.
        """
        if self.closed:
            raise StopIteration
        if os.getpid() != self._pid:  # locks may be held for ever here
            self._iteration.core.check()
        try:
            self.settle()
            inline = self._iteration.inline
            batch = self._next() if inline is None else self._do_here(inline)
        except Closed:
            self.close()
            raise StopIteration from None
        self.yielded += 1
        return batch

    def settle(self) -> None:
        """The batch that was handed out last is used, where its source wants to know that."""
        if self._lease is not None:
            self._iteration.supplier.settle(self._lease)
            self._lease = None

    def _next(self) -> Any:
        failed, deadline = 0, None
        while True:
            # as a rule a batch is ready, or drawn without a wait; caches are cold here: every call
            # counts
            item = self._draw(self._at_once) if self._iteration.draws else self._queue.take()
            if item is None:
                deadline = deadline or Deadline(self._timeout_s)
                item = self._wait(deadline)
            if type(item) is Batch:
                batch = self._made(item)
                if batch is not _DROPPED:
                    return batch
                continue
            if item is END:
                self._exhaust()
            if type(item) is StreamEnd:
                self._iteration.supplier.stream_ended(item.worker)
                self._pay()
                continue
            assert type(item) is Failure
            self._pay()
            # the program has the batch, as an error: it is used when it asks for another one
            self._hand_out(item.lease)
            if self._on_error != "skip":
                if self._on_error == "fatal":
                    self._iteration.core.break_(item.error)
                raise item.error
            self.settle()
            self.skipped, failed = self.skipped + 1, failed + 1
            if failed == _MAX_SKIPS:
                item.error.add_note(
                    f"{_MAX_SKIPS} batches in a row have failed; the others were skipped"
                )
                raise item.error

    def _made(self, item: Batch) -> Any:
        """What is handed out of a batch: see NOTE [read and pay]. `_DROPPED`: it is another's."""
        sends = self._iteration.jobs is not None
        if sends:
            self._pay()
        try:
            batch = self._read(item)
            if self._finish is not None:
                batch = self._finish(batch)
            if self._fill is not None:
                batch = self._fill(batch, self.meter.batches)
        except Exception:
            self._hand_out(item.lease)
            raise
        finally:
            if not sends:
                self._pay()
        if not self._hand_out(item.lease):
            return _DROPPED
        self.meter.batches += 1
        item.empty()
        return batch

    def _hand_out(self, lease: object) -> bool:
        """Whether the batch is still ours: see `Leasing`."""
        if lease is None:
            return True
        ours = self._iteration.supplier.hand_out(lease)
        if ours:
            self._lease = lease
        return ours

    def _pay(self) -> None:
        """There may be another task in the place of what was taken."""
        self._supply.give(self._queue.given)
        jobs = self._iteration.jobs
        if jobs is not None:
            jobs[:] = [job for job in jobs if not job.over]  # they hold slots
            self._supply.fill()

    def _exhaust(self) -> None:
        """There are no more.

        An endless loader stays open: `closed` says whether the user closed it.
        """
        self.exhausted = True
        if self._iteration.producer is None:
            self.close()
        raise StopIteration

    # -- work in this thread -----------------------------------------------------------------------

    def _do_here(self, tasks: InlineTasks) -> Any:
        """Draw a task and do it."""
        supply = self._supply
        self._iteration.core.check()
        try:
            task = supply.supplier.draw(NO_WAIT)
        except Exception as error:
            self.close()
            _raise(error)
        if task is END:
            self._exhaust()
        seq = supply.seq
        supply.seq = seq + 1
        try:
            batch = tasks.batch(seq, task)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            _raise(error)
        if batch is END:
            self._exhaust()
        return batch

    def _draw(self, patience: Patience) -> Any:
        """Draw a batch in this thread; ``None``: the device is not there yet, or `_at_once` it
        cannot be.
        """
        iteration, transfer = self._iteration, self._iteration.transfer
        self._queue.check()
        if transfer is not None and not transfer.opened:
            return None
        patience.waited_s, begun = 0.0, perf_counter()
        try:
            item = self._supply.draw(patience, here=True)
        except Timeout:
            if patience is self._at_once:
                return None
            raise
        cost = perf_counter() - begun - patience.waited_s
        if type(item) is Batch:
            if transfer is not None:
                item = transfer.send_here(item)
            # without the copy to a device, which no other thread would spare
            iteration.note_cost(cost)
        return item

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, deadline: Deadline) -> Any:
        iteration = self._iteration
        part = Deadline(_WARN_AFTER_S) if not self._warned and deadline.left() is None else deadline
        while True:
            iteration.core.check()
            draws, item = iteration.draws, None
            try:
                if draws:
                    iteration.patience.deadline = part
                    item = self._draw(iteration.patience)
                else:
                    self._pay()  # a signal may have cut the last one short
                if item is None:
                    iteration.refuse_deadlock()
                    item = self._queue.get(part)
            except Timeout as error:
                iteration.core.check()
                reason = iteration.diagnosis(error if draws else None)
                if deadline.expired:
                    raise Timeout(f"no batch within {self._timeout_s:g} s: {reason}") from None
                self._warned, part = True, deadline
                text = (
                    f"no batch for {_WARN_AFTER_S:g} s: {reason}. next() goes on waiting; a loader "
                    "with timeout_s= raises Timeout instead"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=5)
                continue
            if item is not None:
                return item

    # -- the iteration -----------------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """Tasks, from the first on, that are not to be done again: their batch was given, or their
        error raised.
        """
        return self._queue.turn if self._iteration.inline is None else self._supply.seq

    def stage(self) -> StageStats | None:
        """Counters of the thread behind the train queue; ``None`` without such a thread."""
        transfer = self._iteration.transfer
        return None if transfer is None else transfer.meter.snapshot(self._queue.depth)

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


def _raise(error: BaseException) -> NoReturn:
    """Raise the error of a task, which must not be taken for the loader's own."""
    raise guarded(error)
