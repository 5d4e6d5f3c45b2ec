"""Worker threads, in the place of worker processes: same chunks, same outcomes.

They share one work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from async_loader.errors import Broken
from async_loader.lifecycle import Deadline, EndFlag, join
from async_loader.pipeline.batch import Batch, Failure, Outcome, StreamEnd
from async_loader.pipeline.job_queue import Chunk, JobQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.pipeline.workers.work import END, WorkerConfig, WorkerState
from async_loader.process_hooks import SignalsDeferred
from async_loader.stats import Meter, StageStats, summed

MOST_GATHERING = 4
CORES_EACH = 4
BYTES_EACH = 2 << 20


def gathering_threads(nbytes: int) -> int:
    """Return how many threads read rows by default, for batches of ``nbytes``.

    For large ones one core is not enough, and a machine with many has some to spare: 256 pairs of
    stacked frames take four threads a third of the time. On few cores the threads only compete.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = min(MOST_GATHERING, (cores or 1) // CORES_EACH, nbytes // BYTES_EACH)
    return threads if threads > 1 else 0


class WorkerStates(list[WorkerState]):
    """What each thread remembers of its work. The threads reference it weakly."""

    def __init__(self, size: int, config: Callable[[int], WorkerConfig], end: EndFlag) -> None:
        super().__init__(WorkerState(config(number), "thread", end) for number in range(size))


class ThreadPool:
    """``size`` threads. Each does whole tasks.

    Parameters
    ----------
    worker_states : weak reference to WorkerStates
        See NOTE [what leads back to the engine] in engine.py.
    end : EndFlag
        Ends each thread once the task, or the job in it, that it is at work on is done.
    on_broken : callable
        Told when a thread cannot begin.
    """

    def __init__(
        self,
        size: int,
        worker_states: Callable[[], WorkerStates | None],
        end: EndFlag,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.jobs = JobQueue()
        self.replaced = 0
        self._worker_states = worker_states
        self._end = end
        self._on_broken = on_broken
        self._changed = threading.Condition()
        self._at_work: dict[int, Chunk] = {}
        self._meters = [Meter() for _ in range(size)]
        end.on_set(self._wake)
        self._threads = [
            threading.Thread(
                target=self._run, args=(n,), name=f"async-loader-worker-{n}", daemon=True
            )
            for n in range(size)
        ]

    def spawn_workers(self) -> None:
        """Nothing to do before the threads start."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, chunks: Sequence[Chunk]) -> None:
        """See `WorkerPool.submit`."""
        with SignalsDeferred(), self._changed:  # a Condition is entered in more than one step
            self.jobs.extend(chunks)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the threads have ended; whether all have.

        One whose task blocks for ever cannot be ended.
        """
        deadline = Deadline(timeout_s)
        late = [thread for thread in self._threads if not join(thread, deadline.left())]
        return not late

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def forget(self) -> None:
        """In a forked child, which has none of the threads."""

    def stage(self, depth: int) -> StageStats:
        """What the threads have done, with seconds summed over them."""
        return summed(self._meters, depth)

    def waiting_for(self) -> str | None:
        """The thread that is at work on the oldest batch, in words."""
        held = [(chunk.job.seq, number) for number, chunk in list(self._at_work.items())]
        return f"thread {min(held)[1]} is at work on batch {min(held)[0]}" if held else None

    # -- the threads -------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        meter = self._meters[number]
        try:
            self._prepare(number)
        except BaseException as error:  # the top of a thread: forward, never die silently
            broken = Broken(f"thread {number} could not start: worker_init_fn failed: {error!r}")
            broken.__cause__ = error
            self._on_broken(broken)
            return
        while (chunk := self._take(number)) is not None:
            states = self._worker_states()
            if states is None:
                return
            self._at_work[number] = chunk
            meter.work()
            outcome = _outcome(chunk, number, states[number])
            meter.wait()
            meter.batches += 1
            del self._at_work[number]
            chunk.job.finish(outcome)
            del chunk, outcome, states  # nothing is held while it waits

    def _prepare(self, number: int) -> None:
        states = self._worker_states()
        if states is not None:
            states[number].prepare()

    def _take(self, number: int) -> Chunk | None:
        with self._changed:
            while not self._end.is_set():
                chunk = self.jobs.take(number)
                if chunk is not None:
                    return chunk
                self._changed.wait()
        return None


def _outcome(chunk: Chunk, number: int, state: WorkerState) -> Outcome:
    spec = chunk.spec
    if spec.number not in state.known:
        state.tell(spec.number, spec.seed, spec.first, spec.live.copy(), lambda: spec.state)
    try:
        batch = state.do(spec.number, chunk.job.seq, chunk.task, stream=spec.stream)
    except BaseException as error:  # data for the consumer: it is raised there
        return Failure(guarded(error))
    if batch is END:
        return StreamEnd(number)
    return batch if type(batch) is Batch else Batch(tree=batch, value=batch)
