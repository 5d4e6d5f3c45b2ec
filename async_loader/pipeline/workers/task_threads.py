"""The worker threads of a pool: the crew's place where a pool has threads instead of processes. Same parts, same answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, EndFlag, join
from async_loader.pipeline.batch import Batch, Failure, StreamEnd
from async_loader.pipeline.job_queue import Chunk, JobQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.pipeline.workers.work import END, IterationRegistry, WorkConfig
from async_loader.stats import Meter, StageStats, summed


class WorkerStates(list[IterationRegistry]):
    """What each thread remembers of its work; held by the pool alone."""

    def __init__(self, size: int, orders: WorkConfig) -> None:
        super().__init__(IterationRegistry(orders, n, "thread") for n in range(size))


class TaskThreads:
    """``size`` threads that share one work.

    Parameters
    ----------
    worker_states : weak reference to WorkerStates
        See NOTE [what leads back to the pool] in pool.py.
    end : EndFlag
        Ends them, each when the task that it is at work on is done.
    """

    def __init__(self, size: int, worker_states: Callable[[], WorkerStates | None], end: EndFlag) -> None:
        self.jobs = JobQueue()
        self._worker_states = worker_states
        self._end = end
        self._changed = threading.Condition()
        self._at_work: dict[int, Chunk] = {}
        self._meters = [Meter() for _ in range(size)]
        self.replaced = 0
        end.on_set(self.wake)
        self._threads = [
            threading.Thread(target=self._run, args=(n,), name=f"async-loader-worker-{n}", daemon=True) for n in range(size)
        ]

    def spawn_workers(self) -> None:
        """Nothing to do before the threads start."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, parts: Sequence[Chunk], noted: Callable[[], object]) -> None:
        """See `WorkerPool.submit`."""
        with (
            SignalsDeferred(),
            self._changed,
        ):  # in this order: entering a Condition takes more than one step, and threads hold it briefly
            self.jobs.put(parts)
            noted()
            self._changed.notify_all()

    def wake(self) -> None:
        """The end flag is up."""
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until they have ended; whether all have. One whose task blocks for ever cannot be ended."""
        deadline = Deadline(timeout_s)
        late = [thread for thread in self._threads if not join(thread, deadline.left())]
        return not late

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def forget(self) -> None:
        """In a forked child, which has none of them."""

    def stage(self, depth: int) -> StageStats:
        """What the threads have done, with seconds summed over them."""
        return summed(self._meters, depth)

    def waiting_for(self) -> str | None:
        held = sorted((part.job.seq, number) for number, part in list(self._at_work.items()))
        return None if not held else f"thread {held[0][1]} is at work on batch {held[0][0]}"

    def _run(self, number: int) -> None:
        while (part := self._take(number)) is not None and (worker_states := self._worker_states()) is not None:
            self._at_work[number] = part
            meter = self._meters[number]
            meter.work()
            outcome = self._do(part, number, worker_states[number])
            meter.wait()
            meter.batches += 1
            del self._at_work[number]
            if not part.job.over:
                part.job.over = True
                part.job.ready.put(part.job.seq, outcome)
            del part, outcome, worker_states  # nothing is held while it waits

    def _take(self, number: int) -> Chunk | None:
        part: Chunk | None = None

        def look() -> bool:
            nonlocal part
            part = self.jobs.take(number)
            return part is not None or self._end.is_set()

        with self._changed:
            self._changed.wait_for(look)
        return None if self._end.is_set() else part

    def _do(self, part: Chunk, number: int, shifts: IterationRegistry) -> Batch | StreamEnd | Failure:
        shift = part.shift
        assert shift is not None
        shifts.forget_before(shift.oldest)
        if not shifts.knows(shift.number):
            shifts.keep(shift.live.copy())
            shifts.tell(shift.number, shift.seed, shift.first, lambda: shift.state)
        try:
            batch = shifts.do(shift.number, part.job.seq, part.task, stream=shift.stream)
        except BaseException as error:  # data for the consumer: it is raised there
            return Failure(guarded(error))
        return StreamEnd(number) if batch is END else Batch(tree=batch, value=batch)
