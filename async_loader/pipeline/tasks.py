"""Where tasks come from: a source, an iterable, or the streams of workers.

Knows neither batches nor how tasks are done.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from async_loader.errors import AsyncLoaderError, Closed
from async_loader.lifecycle import Patience, WaitClosed
from async_loader.name_hints import describe
from async_loader.pipeline.batch import Batch, Outcome, StreamEnd
from async_loader.pipeline.batches import arena
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.job_queue import NO_PAYLOAD, Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import SampleTasks, reader_of
from async_loader.pipeline.workers.thread_pool import ThreadPool
from async_loader.pipeline.workers.work import WorkerState
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.source import (
    END,
    AnyThread,
    Jobs,
    Leasing,
    Plan,
    Reader,
    Rows,
    Source,
    state_of,
    waiting_for,
)
from async_loader.stats import Meter


class InlineTasks:
    """Tasks that are done in the thread that asks for their batches.

    Threads reference the work weakly.
    """

    def __init__(self, state: WorkerState, spec: IterationSpec) -> None:
        self._state = weakref.ref(state)
        self._spec = spec
        # the number of a task is its seed's: `batch` adds the first one
        state.tell(spec.number, spec.seed, 0, {spec.number, *state.known}, lambda: spec.state)

    def batch(self, seq: int, task: object) -> Any:
        """The batch of a task, or END of the stream. Raises what the work raises."""
        state, spec = self._state(), self._spec
        if state is None:
            raise WaitClosed("the loader was dropped")
        if arena.current() is None:
            return state.do(spec.number, spec.first + seq, task, stream=spec.stream)
        # in a worker of another loader: its slot is not for batches that its dataset may keep
        with arena.within(None):
            return state.do(spec.number, spec.first + seq, task, stream=spec.stream)

    def do(self, seq: int, task: object, worker: int | None) -> Outcome:
        """As `batch`, with the word of the end."""
        batch = self.batch(seq, task)
        return StreamEnd(0) if batch is END else Batch(tree=batch)

    def forget(self) -> None:
        """The iteration is over."""
        state = self._state()
        if state is not None:
            state.known.pop(self._spec.number, None)


@dataclass(eq=False)
class TaskDispatch:
    """Tasks of any kind, for the workers of a pool."""

    pool: WorkerPool | ThreadPool
    assembler: ChunkAssembler | None
    spec: IterationSpec
    ready: TrainQueue
    jobs: list[Job] = field(default_factory=list)
    """Under way."""

    def do(self, seq: int, task: object, worker: int | None) -> None:
        """Send a task; its outcome goes to the train queue. Raises CannotSend, OutOfMemory."""
        spec, ready = self.spec, self.ready
        if self.assembler is not None:
            chunk = self.assembler.whole_task(spec, seq, ready, task, worker)
        else:
            job = Job(seq, 1, None, True, ready, chunks=1, worker=worker)
            chunk = Chunk(job, spec, "work", 0, 0, 1, NO_PAYLOAD, task=task, worker=worker)
        self.jobs.append(chunk.job)
        self.pool.submit([chunk])


@dataclass(eq=False)
class PlanDispatch:
    """Plans of a source: rows and jobs for workers if there are any, all else for this thread."""

    source: Source
    local: SampleTasks
    pool: WorkerPool | ThreadPool | None
    assembler: ChunkAssembler | None
    spec: IterationSpec
    ready: TrainQueue
    meter: Meter = field(default_factory=Meter)
    _reader: Reader | None = None

    def do(self, seq: int, plan: Plan, worker: int | None) -> Outcome | None:
        """The batch of a plan; ``None``: it was sent, and its outcome goes to the train queue.

        Raises what its work raises, CannotSend, OutOfMemory.
        """
        if self.pool is not None and isinstance(plan, Rows | Jobs):
            self.pool.submit(self._chunks(seq, plan))
            return None
        meter, begun = self.meter, perf_counter()
        try:
            outcome = self.local.do((seq, plan))
            meter.batches += 1  # before the batch can be taken, and the count be read
            return outcome
        finally:
            meter.worked(begun)

    def _chunks(self, seq: int, plan: Rows | Jobs) -> list[Chunk]:
        if self.assembler is not None:
            if isinstance(plan, Rows) and self._reader is None:
                self._reader = reader_of(self.source)
                self.spec.encode_state(self._reader)
            return self.assembler.cut(self.spec, seq, self.ready, plan, self._reader)
        job = Job(seq, len(plan), None, True, self.ready, chunks=1)
        return [Chunk(job, self.spec, "work", 0, 0, len(plan), NO_PAYLOAD, task=(seq, plan))]


class TaskSupplier:
    """Draws the tasks of one iteration, in their order. One thread at a time calls it.

    Attributes
    ----------
    name : str
        For messages.
    ends_by_errors : bool
        There are no more tasks after an error of `draw`.
    planning_since : float | None
        When the draw that is under way began.
    """

    name = "order of the batches"
    ends_by_errors = True
    planning_since: float | None = None

    def draw(self, patience: Patience) -> Any:
        """Return the next task, or END. Waits through ``patience`` alone."""
        raise NotImplementedError

    def worker(self, seq: int, task: object) -> int | None:
        """The only worker that may do task ``seq``; ``None``: any."""
        return None

    def waiting_for(self) -> str | None:
        """Why `draw` waits, in numbers, where only this process can end the wait."""
        return None

    def stream_ended(self, worker: int) -> None:
        """This worker's stream has no more batches."""

    def note(self, seq: int) -> None:
        """Task ``seq`` is next. Called by the thread that draws, after each draw."""

    def hand_out(self, lease: object) -> bool:
        """See `Leasing.hand_out`."""
        return True

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""

    def release(self, timeout_s: float) -> None:
        """See `Leasing.release`."""

    def close(self) -> None:
        """Let go of what the tasks come from."""


class SourceTasks(TaskSupplier):
    """The plans of a source. `draw` may wait long, so as a rule a thread of the loader calls it.

    Attributes
    ----------
    at_once : bool
        The source is `AnyThread`, and asked for batches that need no wait first: by the consumer,
        who knows where it is.
    queue : TrainQueue | None
        That the consumer takes from.
    """

    queue: TrainQueue | None = None

    ends_by_errors = False

    def __init__(self, source: Source, batch_size: int) -> None:
        self.meter = Meter()
        self.source = source
        self.at_once = False
        self.name = f"data source {describe(getattr(source, 'function', source))}"
        self._batch_size = batch_size
        self._states: dict[int, dict[str, Any] | None] = {}

    def note(self, seq: int) -> None:
        """Keep where the source is, until the consumer has taken the tasks before."""
        if self.at_once:
            return
        assert self.queue is not None
        self._states[seq] = state_of(self.source)
        turn = self.queue.turn
        while (oldest := next(iter(self._states))) < turn:
            del self._states[oldest]

    def state(self, seq: int) -> dict[str, Any] | None:
        """The state of the source before task ``seq``, the next of the consumer."""
        return state_of(self.source) if self.at_once else self._states[seq]

    def draw(self, patience: Patience) -> Any:
        meter, plan, begun = self.meter, None, time.perf_counter()
        try:
            if self.at_once:
                plan = cast(AnyThread, self.source).draw_now(self._batch_size)
            if plan is None:
                self.planning_since = time.monotonic()
                plan = self.source.plan(self._batch_size, patience)
            meter.batches += 1
            return plan
        except Closed as error:
            # A source that the user closed is an error for the consumer; our own end flag ends the
            # thread.
            if patience.end is not None and patience.end.is_set():
                raise
            raise AsyncLoaderError(f"the data source is closed: {error}") from error
        finally:
            self.planning_since = None
            meter.worked(begun)

    def waiting_for(self) -> str | None:
        return waiting_for(self.source)

    def hand_out(self, lease: object) -> bool:
        return cast(Leasing, self.source).hand_out(lease)

    def settle(self, lease: object) -> None:
        cast(Leasing, self.source).settle(lease)

    def release(self, timeout_s: float) -> None:
        if isinstance(self.source, Leasing):
            self.source.release(timeout_s)


class IterableTasks(TaskSupplier):
    """Tasks from an iterable, drawn in the consumer's thread.

    Parameters
    ----------
    workers : int
        Task n goes to worker (first + n) % workers; 0: to any.
    first : int
        Number of the first task.
    """

    def __init__(self, tasks: Iterable[Any], workers: int = 0, first: int = 0) -> None:
        self._tasks: Iterator[Any] = iter(tasks)
        self._workers = workers
        self._first = first

    def draw(self, patience: Patience) -> Any:
        return next(self._tasks, END)

    def worker(self, seq: int, task: object) -> int | None:
        if not self._workers:
            return None
        return (self._first + seq) % self._workers

    def close(self) -> None:
        self._tasks = iter(())


class StreamTasks(TaskSupplier):
    """The worker whose stream is to give the next batch: one after the other, of those that have
    not ended.

    Parameters
    ----------
    turn : int
        The worker to begin with.
    under_way : list of Job | None, an attribute too
        The jobs under way, where batches are delivered out of order: then the worker with the
        fewest is next, and a fast one need not wait for its turn behind a slow one.
    """

    def __init__(self, workers: int, turn: int = 0, under_way: list[Job] | None = None) -> None:
        self._workers = workers
        self._active = set(range(workers))
        self._at = turn - 1
        self.under_way = under_way

    def draw(self, patience: Patience) -> Any:
        if not self._active:
            return END
        turns = [(self._at + n) % self._workers for n in range(1, self._workers + 1)]
        turns = [worker for worker in turns if worker in self._active]
        if self.under_way is not None:
            busy = Counter(job.worker for job in self.under_way if not job.over)
            turns.sort(key=busy.__getitem__)
        self._at = turns[0]
        return None

    def worker(self, seq: int, task: object) -> int | None:
        return self._at

    def stream_ended(self, worker: int) -> None:
        self._active.discard(worker)

    def close(self) -> None:
        self._active.clear()
