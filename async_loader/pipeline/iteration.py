"""One pass over the tasks of a pool, as the consumer sees it. Does no task itself.

# NOTE [who holds what]
Workers' threads hold jobs, a job holds the queue of its iteration, nobody holds the iteration but the consumer: one that
is dropped in the middle is closed by that, and what was under way is not delivered.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from async_loader.errors import AsyncLoaderError, Closed, Timeout
from async_loader.lifecycle import Deadline
from async_loader.pipeline import arena
from async_loader.pipeline.batch import Drained, Failure, Nudge
from async_loader.pipeline.failures import guarded
from async_loader.pipeline.job_queue import Job, Shift
from async_loader.pipeline.packing import Parcel
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.work import END, Shifts
from async_loader.shm.slots import SlotRing


class Office(Protocol):
    """What an iteration asks of its pool."""

    def check(self) -> None:
        """Raise when no more batches can come."""

    def submit(self, shift: Shift, seq: int, ready: TrainQueue, task: Any, worker: int | None) -> Job:
        """Have a task done; the outcome goes to ``ready``. Raises CannotSend, OutOfMemory."""

    @property
    def ring(self) -> SlotRing | None:
        """The slots in use."""

    def diagnosis(self) -> str:
        """Whom everyone waits for, in words."""


class Iteration(Iterator[Any]):
    """Made by `Pool.iterate` and `Pool.streams`. One consumer at a time.

    Attributes
    ----------
    number : int
        Counts the iterations of the pool.
    yielded : int
        Batches that `next` has returned.
    closed : bool
    exhausted : bool
        It gave all there was.
    """

    def __init__(self, number: int, on_close: Callable[[], None]) -> None:
        self.number = number
        self.yielded = 0
        self.closed = self.exhausted = False
        self._on_close = on_close
        self._openings: list[Any] = []

    @property
    def passed(self) -> int:
        """Tasks, from the first on, that are not to be done again: their batch was given, or their error raised in its turn."""
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
        raise NotImplementedError

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

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()

    def __enter__(self) -> Iteration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Inline(Iteration):
    """The consumer does the work itself, when it asks for it."""

    def __init__(
        self, shift: Shift, shifts: Shifts, tasks: Iterator[Any], check: Callable[[], None], on_close: Callable[[], None]
    ) -> None:
        super().__init__(shift.number, on_close)
        self._tasks, self._shifts, self._check = tasks, shifts, check
        self._stream = shift.stream
        self._seq = itertools.count(shift.first)
        self._drawn = self._passed = 0
        shifts.tell(shift.number, shift.seed, shift.first, lambda: shift.state)

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        try:
            self._check()
            task = next(self._tasks)
            self._drawn += 1
        except Closed:
            self.close()
            raise StopIteration from None
        except StopIteration:
            self.exhausted = True
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        try:
            batch = self._do(next(self._seq), task)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            self._passed = self._drawn
            named = guarded(error)
            if named is error:
                raise
            raise named from error
        if batch is END:
            self.exhausted = True
            self.close()
            raise StopIteration
        self.yielded += 1
        self._passed = self._drawn
        return batch

    @property
    def passed(self) -> int:
        return self._passed

    def open(self, task: Any, workers: int) -> None:
        try:
            self._openings.append(self._do(-1, task))
        except Exception as error:
            self._openings.append(Failure(guarded(error)))

    def _do(self, seq: int, task: Any) -> Any:
        if arena.current() is None:
            return self._shifts.do(self.number, seq, task, stream=self._stream)
        with arena.within(None):  # in a worker of another pool: its slot is not for batches that its dataset may keep
            return self._shifts.do(self.number, seq, task, stream=self._stream)

    def close(self) -> None:
        super().close()
        self._tasks = iter(())
        self._shifts.forget(self.number)


class Team(Iteration):
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
        office: Office,
        shift: Shift,
        tasks: Iterator[tuple[Any, int | None]],
        *,
        window: int,
        in_order: bool,
        timeout_s: float | None,
        on_drained: Callable[[int], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(shift.number, on_close)
        self.queue = TrainQueue(in_order)
        self._office = office
        self._shift = shift
        self._tasks = tasks
        self._window = window
        self._timeout_s = timeout_s
        self._on_drained = on_drained
        self._jobs: list[Job] = []
        self._opening = TrainQueue()
        self._opening_jobs: list[Job] = []
        self._to_open = 0
        self._seq = 0
        self._settled = 0
        self._dry = self._spoilt = False
        self._pid = os.getpid()

    def open(self, task: Any, workers: int) -> None:
        """See `Iteration.open`. The answers have a queue of their own: they are no batches."""
        for worker in range(workers):
            try:
                self._opening_jobs.append(self._office.submit(self._shift, worker, self._opening, task, worker))
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
                item = self._opening.get(deadline)
            except Timeout:
                text = f"not all workers have begun within {limit_s:g} s: {self.waiting_for()}"
                raise Timeout(text) from None
            if not isinstance(item, Nudge):
                self._openings.append(_value(item))
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
                task, worker = next(self._tasks)
            except StopIteration:
                self._dry = True
                return
            except Exception as error:  # of whoever makes the tasks; in its turn
                self._dry = self._spoilt = True
                self._fail(error)
                return
            try:
                self._jobs.append(self._office.submit(self._shift, self._seq, self.queue, task, worker))
                self._seq += 1
            except AsyncLoaderError as error:  # this task cannot travel: the others can
                if isinstance(error, Closed):
                    raise
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.queue.put(self._seq, Failure(guarded(error)))
        self._seq += 1

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        try:
            return self._next(Deadline(self._timeout_s))
        except Closed:
            self.close()
            raise StopIteration from None

    def _next(self, deadline: Deadline) -> Any:
        while True:
            self._office.check()
            self.feed()
            if self._settled == self._seq:
                self.exhausted = True
                self.close()
                raise StopIteration
            item = self.queue.pop()
            if item is None:
                item = self._wait(deadline)
            if isinstance(item, Nudge):
                continue
            batch = self._settle(item)
            if batch is not END:
                return batch

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
            return self.queue.get(deadline)
        except Timeout:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self.waiting_for()}") from None

    def _settle(self, item: Any) -> Any:
        """An outcome has come: the batch in it, END for none."""
        self._settled += 1
        self._jobs = [job for job in self._jobs if not job.over]
        if isinstance(item, Drained):
            self._on_drained(item.worker)
            return END
        self.feed()
        if isinstance(item, Failure):
            raise item.error
        self.yielded += 1
        return _value(item)

    def close(self) -> None:
        """See `Iteration.close`. In a forked child there are no workers, and a lock that one held then is held for good."""
        if not self.closed and os.getpid() == self._pid:
            for job in (*self._jobs, *self._opening_jobs):
                job.over = True
            self._jobs.clear()
            self._opening_jobs.clear()
            self._tasks = iter(())
            for queue in self.queues:
                queue.close()
        super().close()


def _value(item: Any) -> Any:
    """What a worker answered; a Failure stays one."""
    if isinstance(item, Parcel):
        return item.take()
    return item if isinstance(item, Failure) else END if isinstance(item, Drained) else item.tree


def unaddressed(tasks: Iterable[Any]) -> Iterator[tuple[Any, None]]:
    """Tasks for whoever is free."""
    return ((task, None) for task in tasks)


def dealt(tasks: Iterable[Any], workers: int, first: int = 0) -> Iterator[tuple[Any, int]]:
    """Task n for worker n modulo the number of workers."""
    return ((task, n % workers) for n, task in enumerate(tasks, first))


class Rota:
    """Whose stream is to give the next batch: one after the other, of those that have any left."""

    def __init__(self, workers: int, turn: int = 0) -> None:
        self._workers = workers
        self._active = set(range(workers))
        self._at = turn - 1

    def drained(self, worker: int) -> None:
        self._active.discard(worker)

    def __iter__(self) -> Rota:
        return self

    def __next__(self) -> tuple[None, int]:
        if not self._active:
            raise StopIteration
        while True:
            self._at = (self._at + 1) % self._workers
            if self._at in self._active:
                return None, self._at
