"""One pass over the tasks of a pool, as the consumer sees it. Does no task itself.

# NOTE [who holds what]
Workers' threads hold jobs, a job holds the queue of its iteration, nobody holds the iteration but the consumer: one that
is dropped in the middle is closed by that, and what was under way is not delivered.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from async_loader.errors import AsyncLoaderError, Broken, Closed, Timeout
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure, StreamEnd, Wakeup
from async_loader.pipeline.batches import arena
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.job_queue import IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.pipeline.workers.work import END, WorkerState
from async_loader.shm.slot_ring import SlotRing


class PoolApi(Protocol):
    """What an iteration asks of its pool."""

    output: HostOutput

    def check(self) -> None:
        """Raise when no more batches can come."""

    def submit(
        self, spec: IterationSpec, seq: int, ready: TrainQueue, task: Any, worker: int | None, noted: Callable[[Job], object]
    ) -> None:
        """Have a task done; the outcome goes to ``ready``. Raises CannotSend, OutOfMemory.

        ``noted`` gets the job: it is called if, and only if, the task is on its way, also when a signal comes meanwhile.
        """

    @property
    def ring(self) -> SlotRing | None:
        """The slots in use."""

    def diagnosis(self) -> str:
        """Whom everyone waits for, in words."""


NOTHING: Any = object()


class Iteration(Iterator[Any]):
    """Made by `Pool.iterate` and `Pool.streams`. One consumer at a time.

    # NOTE [held]
    `hold` sees to it that ``held`` is the next batch, in steps that can be repeated, so a signal that interrupts it loses
    nothing: the following call holds the same batch. `__next__`, or `release` for a consumer that hands on what it makes
    of the batch in the same manner, lets go of it.

    Attributes
    ----------
    number : int
        Counts the iterations of the pool.
    yielded : int
        Batches that were handed out.
    held : Any
        The batch that is handed out next, a Failure, or NOTHING.
    closed : bool
    exhausted : bool
        It gave all there was.
    """

    def __init__(self, number: int, tasks: Iterator[Any], on_close: Callable[[], None]) -> None:
        self.number = number
        self.yielded = 0
        self.held: Any = NOTHING
        self.closed = self.exhausted = False
        self._on_close = on_close
        self._openings: list[Any] = []
        self._tasks = tasks
        self._pulled: Any = NOTHING
        self._torn = False

    def hold(self) -> None:
        """See to it that ``held`` is the next batch. Raises as `__next__` does."""
        raise NotImplementedError

    def release(self) -> None:
        """What was held has been handed on. Safe to repeat."""
        if self.held is not NOTHING:
            self.held, self.yielded = NOTHING, self.yielded + 1

    def _pull(self) -> bool:
        """See to it that the next task is pulled; False: there are no more.

        Raises
        ------
        Broken
            There are no more because a signal came while the next one was made: a generator ends with that.
        """
        if self._pulled is NOTHING:
            try:
                # Not next(): what a loop assigns was not lost before the assignment, whenever a signal comes.
                for self._pulled in self._tasks:  # noqa: B020
                    break
            except Exception:
                raise
            except BaseException:
                self._torn = True
                raise
        torn, self._torn = self._torn, False
        if torn and self._pulled is NOTHING and not isinstance(self._tasks, RoundRobin):
            raise Broken("a signal (Ctrl-C) ended what gives the order (a sampler): the rest of this pass is lost, begin another")
        return self._pulled is not NOTHING

    @property
    def passed(self) -> int:
        """Tasks, from the first on, that are not to be done again: their batch was given, or their error raised in its turn.

        While a batch is ``held``, it may or may not count.
        """
        raise NotImplementedError

    @property
    def beyond(self) -> tuple[int, ...]:
        """Numbers of later tasks that are not to be done again either: where the order is not kept."""
        return ()

    def open(self, task: Any, workers: int) -> None:
        """Have each of ``workers`` do this task before any other. The pool calls it, once, at the
        beginning.
        """
        raise NotImplementedError

    def openings(self, timeout_s: float | None = None) -> list[Any]:
        """What the workers answered to the task of `open`: a `Failure` for what one raised. Waits
        for all of them, and returns each answer once.

        Parameters
        ----------
        timeout_s : float | None
            ``None``: that of the iteration.

        Raises
        ------
        Timeout
            Not all have answered in time. The next call waits for the others.
        Closed, Broken
        """
        return self._take_openings()

    def _take_openings(self) -> list[Any]:
        taken, self._openings = self._openings, []
        return taken

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises
        ------
        StopIteration
            All tasks are done, or the iteration or its pool was closed.
        Timeout
            Nothing came in time. Nothing is lost: the next call waits for the same batch.
        WorkerDied
            At once, ahead of what is queued; the following call goes on with the other batches.
        Broken
            Workers cannot be started.
        BaseException
            What the task raised, or the iterable that the tasks come from. After the former the next call goes on.
        """
        self.hold()
        try:
            return self.held
        finally:
            self.held, self.yielded = NOTHING, self.yielded + 1

    @property
    def ring(self) -> SlotRing | None:
        """The slots in which its batches lie, where they do."""
        return None

    def waiting_for(self) -> str:
        """Who is at work on what, in words."""
        return "the consumer does the work itself"

    def close(self) -> None:
        """Cancel what is under way; idempotent. The pool goes on."""
        if not self.closed:
            self.closed = True
            self._on_close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "closed", True) and not finalizing():  # then modules are being taken apart, and all ends anyway
            self.close()

    def __enter__(self) -> Iteration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InlineIterator(Iteration):
    """The consumer does the work itself, when it asks for it."""

    def __init__(
        self,
        spec: IterationSpec,
        state: WorkerState,
        tasks: Iterator[Any],
        check: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(spec.number, tasks, on_close)
        self._state, self._check = state, check
        self._stream = spec.stream
        self._first = spec.first
        self._done = 0
        state.tell(spec.number, spec.seed, spec.first, lambda: spec.state)

    def hold(self) -> None:
        """See `Iteration.hold`. A task that a signal interrupted is done again."""
        if self.closed:
            raise StopIteration
        try:
            self._check()
            if self.held is not NOTHING:
                return
            more = self._pull()
        except Closed:
            self.close()
            raise StopIteration from None
        except Exception:
            self.close()
            raise
        if not more:
            self._exhaust()
        try:
            batch = self._do(self._first + self._done, self._pulled)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            self._pulled, self._done = NOTHING, self._done + 1
            named = guarded(error)
            if named is error:
                raise
            raise named from error
        if batch is END:
            self._exhaust()
        self.held, self._pulled, self._done = batch, NOTHING, self._done + 1

    def _exhaust(self) -> None:
        self.exhausted = True
        self.close()
        raise StopIteration

    @property
    def passed(self) -> int:
        return self._done

    def open(self, task: Any, workers: int) -> None:
        try:
            self._openings.append(self._do(-1, task))
        except Exception as error:
            self._openings.append(Failure(guarded(error)))

    def _do(self, seq: int, task: Any) -> Any:
        if arena.current() is None:
            return self._state.do(self.number, seq, task, stream=self._stream)
        with arena.within(None):  # in a worker of another pool: its slot is not for batches that its dataset may keep
            return self._state.do(self.number, seq, task, stream=self._stream)

    def close(self) -> None:
        super().close()
        self._tasks = iter(())
        self._state.forget(self.number)


class PooledIterator(Iteration):
    """Workers do the work, some batches ahead.

    Parameters
    ----------
    tasks : iterator
        Of (task, worker or None).
    window : int
        Tasks under way at most.
    """

    def __init__(
        self,
        office: PoolApi,
        spec: IterationSpec,
        tasks: Iterator[tuple[Any, int | None]],
        *,
        window: int,
        in_order: bool,
        timeout_s: float | None,
        on_drained: Callable[[int], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(spec.number, tasks, on_close)
        self.queue = TrainQueue(in_order)
        self.jobs: list[Job] = []
        """Under way."""
        self._office = office
        self._spec = spec
        self._window = window
        self._timeout_s = timeout_s
        self._on_drained = on_drained
        self._opening = TrainQueue()
        self._opening_jobs: list[Job] = []
        self._to_open = 0
        self._seq = 0
        self._settled = 0
        self._owed = False  # what was found is still in the queue
        self._unread = False  # what is held is a worker's answer, not yet the batch in it
        self._dry = self._spoilt = False
        self._pid = os.getpid()

    def open(self, task: Any, workers: int) -> None:
        """See `Iteration.open`. The answers have a queue of their own: they are no batches."""
        for worker in range(workers):
            try:
                self._office.submit(self._spec, worker, self._opening, task, worker, self._opening_jobs.append)
            except AsyncLoaderError as error:
                if isinstance(error, Closed):
                    raise
                self._opening.put(worker, Failure(guarded(error)))
        self._to_open = workers

    def openings(self, timeout_s: float | None = None) -> list[Any]:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = Deadline(limit_s)
        while self._to_open:
            self._office.check()
            try:
                item = self._opening.wait(deadline)
            except Timeout:
                text = f"not all workers have begun within {limit_s:g} s: {self.waiting_for()}"
                raise Timeout(text) from None
            with SignalsDeferred():
                self._opening.drop()
                if not isinstance(item, Wakeup):
                    self._openings.append(self._value(item))
                    self._to_open -= 1
        self._opening_jobs.clear()  # they hold slots
        return self._take_openings()

    @property
    def queues(self) -> tuple[TrainQueue, ...]:
        """Where outcomes go."""
        return self.queue, self._opening

    def feed(self) -> None:
        """Keep as many tasks under way as there may be."""
        while self._seq - self._settled < self._window and not self._dry:
            try:
                if not self._pull():
                    self._dry = True
                    return
            except Exception as error:  # of whatever makes the tasks; in its turn
                with SignalsDeferred():
                    self._dry = self._spoilt = True
                    self._fail(error)
                return
            task, worker = self._pulled
            try:
                self._office.submit(self._spec, self._seq, self.queue, task, worker, self._noted)
            except AsyncLoaderError as error:  # this task cannot travel: the others can
                if isinstance(error, Closed):
                    raise
                self._fail(error)

    def _noted(self, job: Job) -> None:
        self.jobs.append(job)
        self._seq, self._pulled = self._seq + 1, NOTHING

    def _fail(self, error: BaseException) -> None:
        self.queue.put(self._seq, Failure(guarded(error)))
        self._seq, self._pulled = self._seq + 1, NOTHING

    def hold(self) -> None:
        """See `Iteration.hold`."""
        if self.closed:
            raise StopIteration
        try:
            self._office.check()
            if self.held is NOTHING:
                self._hold(Deadline(self._timeout_s))
            if self._owed:
                self._settle()
                self.feed()  # before the batch is read: workers go on meanwhile
        except Closed:
            self.close()
            raise StopIteration from None
        if self._unread:
            self.held = self._value(self.held)
            self._unread = False
        if isinstance(self.held, Failure):
            try:
                raise self.held.error
            finally:
                self.held = NOTHING

    def _hold(self, deadline: Deadline) -> None:
        while True:
            if self._owed:
                self._settle()
            self.feed()
            if self._settled == self._seq:
                self.exhausted = True
                self.close()
                raise StopIteration
            item = self.queue.front()
            if item is None:
                item = self._wait(deadline)
            if isinstance(item, Wakeup):
                self.queue.drop()
                self._office.check()
            elif isinstance(item, StreamEnd):
                self._on_drained(item.worker)
                self._owed = True
            else:
                self._owed = self._unread = True
                self.held = item
                return

    def _settle(self) -> None:
        """What was found is no longer the queue's, and there may be another task in its place."""
        self.queue.drop()
        self._settled, self._owed = self._settled + 1, False
        self.jobs[:] = [job for job in self.jobs if not job.over]

    def _value(self, item: Any) -> Any:
        """The batch of an outcome, END for the end of a stream; a Failure stays one. Safe to repeat."""
        if not isinstance(item, Batch):
            return END if isinstance(item, StreamEnd) else item
        try:
            return self._office.output.hand_out(item)
        except Exception as error:  # no memory for a copy
            return Failure(error)

    @property
    def passed(self) -> int:
        return min(self.queue.passed, self._seq - self._spoilt)

    @property
    def beyond(self) -> tuple[int, ...]:
        return self.queue.beyond

    @property
    def ring(self) -> SlotRing | None:
        return self._office.ring

    def waiting_for(self) -> str:
        return self._office.diagnosis()

    def _wait(self, deadline: Deadline) -> Any:
        try:
            return self.queue.wait(deadline)
        except Timeout:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self.waiting_for()}") from None

    def close(self) -> None:
        """See `Iteration.close`. In a forked child there are no workers, and a lock that one held then is held for good."""
        if not self.closed and os.getpid() == self._pid:
            for job in (*self.jobs, *self._opening_jobs):
                job.over = True
            self.jobs.clear()
            self._opening_jobs.clear()
            self._tasks = iter(())
            for queue in self.queues:
                queue.close()
        super().close()


def unaddressed(tasks: Iterable[Any]) -> Iterator[tuple[Any, None]]:
    """Tasks for whichever worker is free. No generator: those end when a signal comes."""
    return zip(tasks, itertools.repeat(None))


def dealt(tasks: Iterable[Any], workers: int, first: int = 0) -> Iterator[tuple[Any, int]]:
    """Task n for worker n modulo the number of workers."""
    turns = [(first + n) % workers for n in range(workers)]
    return zip(tasks, itertools.cycle(turns))


class RoundRobin:
    """The worker whose stream is to give the next batch.

    One after the other, of those that have any left. Out of order, the one that has least to do: a fast worker need not
    wait for its turn behind a slow one.

    Parameters
    ----------
    turn : int
        The worker to begin with.
    under_way : list of Job | None
        Of the iteration, where batches are delivered out of order.
    """

    def __init__(self, workers: int, turn: int = 0) -> None:
        self.under_way: list[Job] | None = None
        self._workers = workers
        self._active = set(range(workers))
        self._at = turn - 1

    def drained(self, worker: int) -> None:
        self._active.discard(worker)

    def __iter__(self) -> RoundRobin:
        return self

    def __next__(self) -> tuple[None, int]:
        if not self._active:
            raise StopIteration
        turns = [(self._at + n) % self._workers for n in range(1, self._workers + 1)]
        turns = [worker for worker in turns if worker in self._active]
        if self.under_way is not None:
            busy = Counter(job.worker for job in self.under_way if not job.over)
            turns.sort(key=busy.__getitem__)
        self._at = turns[0]
        return None, self._at
