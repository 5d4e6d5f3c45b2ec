"""The worker threads of a loader: in the crew's place where ``worker_type`` is "thread". Each makes whole batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from async_loader.errors import Broken
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, EndFlag, join
from async_loader.pipeline.batch import Failure, Outcome
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.pipeline.workers.main_worker import MainWorker
from async_loader.source import Jobs, Reader, Rows
from async_loader.stats import Meter, StageStats, summed


class PlanThreads:
    """Threads that take plans and put batches into the train queue.

    Parameters
    ----------
    mains : sequence of MainWorker
        One for each thread.
    ready : TrainQueue
    end : EndFlag
        Ends them, each when the batch that it is at work on is done.
    init : callable | None
        Called with its number in each thread before its first batch.
    on_broken : callable
        Told when a thread cannot begin.
    """

    def __init__(
        self,
        mains: Sequence[MainWorker],
        ready: TrainQueue,
        end: EndFlag,
        init: Callable[[int], object] | None,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.size = len(mains)
        self.replaced = 0
        self.jobs: deque[tuple[int, Rows | Jobs]] = deque()
        self._mains = mains
        self._ready = ready
        self._end = end
        self._init = init
        self._on_broken = on_broken
        self._meters = [Meter() for _ in mains]
        self._readers: list[Reader | None] = [None for _ in mains]
        self._turns: dict[int, threading.Lock] = {}
        self._changed = threading.Condition()
        self._at_work: dict[int, int] = {}
        end.on_set(self.wake)
        self._threads = [
            threading.Thread(target=self._run, args=(n,), name=f"async-loader-worker-{n}", daemon=True) for n in range(self.size)
        ]

    def spawn_workers(self) -> None:
        """Nothing to do before the threads start."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def use_readers(self, readers: Sequence[Reader]) -> None:
        """One for each thread. A reader that several threads have to share reads for one of them at a time."""
        self._turns = {id(reader): threading.Lock() for reader in readers}
        self._readers = list(readers)

    def submit(self, seq: int, plan: Rows | Jobs) -> None:
        """Have a batch made; what becomes of it goes to the train queue."""
        with SignalsDeferred(), self._changed:
            self.jobs.append((seq, plan))
            self._changed.notify()

    def wake(self) -> None:
        """The end flag is up."""
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the threads have ended; whether all have. One whose job blocks for ever cannot be ended."""
        deadline = Deadline(timeout_s)
        late = [thread for thread in self._threads if thread.ident is not None and not join(thread, deadline.left())]
        return not late

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def forget(self) -> None:
        """In a forked child, which has none of the threads."""

    def waiting_for(self) -> str | None:
        """The thread that is at work on the oldest batch, in words."""
        held = min(((seq, n) for n, seq in list(self._at_work.items())), default=None)
        return None if held is None else f"thread {held[1]} is at work on batch {held[0]}"

    def stage(self, depth: int) -> StageStats:
        """What the threads have done, with seconds summed over them."""
        return summed(self._meters, depth)

    # -- the threads -------------------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        try:
            if self._init is not None:
                self._init(number)
        except BaseException as error:  # the top of a thread: forward, never die silently
            broken = Broken(f"thread {number} could not start: worker_init_fn failed: {error!r}")
            broken.__cause__ = error
            self._on_broken(broken)
            return
        meter = self._meters[number]
        while (job := self._take()) is not None:
            seq, plan = job
            self._at_work[number] = seq
            meter.work()
            outcome = self._do(number, seq, plan)
            meter.batches += 1
            meter.wait()
            del self._at_work[number]
            self._ready.put(seq, outcome)
            del job, plan, outcome  # nothing is held while it waits

    def _take(self) -> tuple[int, Rows | Jobs] | None:
        with self._changed:
            self._changed.wait_for(lambda: self.jobs or self._end.is_set())
            return None if self._end.is_set() else self.jobs.popleft()

    def _do(self, number: int, seq: int, plan: Rows | Jobs) -> Outcome | Failure:
        main, reader = self._mains[number], self._readers[number]
        try:
            if isinstance(plan, Jobs) or reader is None:
                return main.do(seq, plan, reader)
            with self._turns[id(reader)]:
                return main.do(seq, plan, reader)
        except BaseException as error:  # data for the consumer: it is raised there
            return Failure(guarded(error))
