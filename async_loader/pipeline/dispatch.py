"""Where the tasks of an iteration are done: inline, by the workers of a pool, or as the plans of a
source.
"""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import Any

from async_loader.errors import AsyncLoaderError, Closed
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Outcome, StreamEnd
from async_loader.pipeline.batches import arena
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.job_queue import NO_PAYLOAD, Chunk, IterationSpec, Job
from async_loader.pipeline.producer import NO_WAIT, Supply
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import LocalReaders, SampleTasks
from async_loader.pipeline.workers.thread_pool import ThreadPool
from async_loader.pipeline.workers.work import WorkerState
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.source import END, Jobs, Plan, Reader, Rows, Source
from async_loader.stats import Meter


class InlineTasks:
    """Tasks that are done in the thread that asks for their batches.

    Threads reference the work weakly.
    """

    def __init__(self, state: WorkerState, spec: IterationSpec) -> None:
        self._state = weakref.ref(state)
        self._spec = spec
        state.tell(spec.number, spec.seed, 0, lambda: spec.state)

    def batch(self, seq: int, task: object) -> Any:
        """The batch of a task, or END of the stream. Raises what the work raises."""
        state, spec = self._state(), self._spec
        if state is None:
            raise Closed("the loader was dropped")
        if arena.current() is None:
            return state.do(spec.number, spec.first + seq, task, stream=spec.stream)
        # in a worker of another loader: its slot is not for batches that its dataset may keep
        with arena.within(None):
            return state.do(spec.number, spec.first + seq, task, stream=spec.stream)

    def do(self, seq: int, task: object, worker: int | None) -> Outcome:
        batch = self.batch(seq, task)
        return StreamEnd(0) if batch is END else Batch(tree=batch)

    def forget(self) -> None:
        """The iteration is over."""
        state = self._state()
        if state is not None:
            state.forget(self._spec.number)


class TaskDispatch:
    """Tasks of any kind, for the workers of a pool. See `Dispatch`."""

    def __init__(
        self,
        pool: WorkerPool | ThreadPool,
        assembler: ChunkAssembler | None,
        spec: IterationSpec,
        ready: TrainQueue,
    ) -> None:
        self.jobs: list[Job] = []
        """Under way."""
        self._pool = pool
        self._assembler = assembler
        self._spec = spec
        self._ready = ready

    def do(self, seq: int, task: object, worker: int | None) -> None:
        chunk = self.chunk(seq, task, worker, self._ready)
        self.jobs.append(chunk.job)
        self._pool.submit([chunk])

    def chunk(self, seq: int, task: object, worker: int | None, ready: TrainQueue) -> Chunk:
        """A task as one chunk. Raises CannotSend, OutOfMemory."""
        if self._assembler is not None:
            return self._assembler.whole_task(self._spec, seq, ready, task, worker)
        job = Job(seq, 1, None, True, ready, chunks=1, worker=worker)
        return Chunk(job, self._spec, "work", 0, 0, 1, NO_PAYLOAD, task=task, worker=worker)


class PlanDispatch:
    """Plans of a source: rows and jobs for workers where there are any, all else for this thread.

    See `Dispatch`.
    """

    def __init__(
        self,
        source: Source,
        local: SampleTasks,
        pool: WorkerPool | ThreadPool | None,
        assembler: ChunkAssembler | None,
        spec: IterationSpec,
        ready: TrainQueue,
    ) -> None:
        self.meter = Meter()
        self._source = source
        self._local = local
        self._pool = pool
        self._assembler = assembler
        self._spec = spec
        self._ready = ready
        self._reader: Reader | None = None
        self._readers: LocalReaders | None = None

    def do(self, seq: int, plan: Plan, worker: int | None) -> Outcome | None:
        if isinstance(plan, Rows) and self._reader is None:
            self._meet_reader()
        if self._pool is not None and isinstance(plan, Rows | Jobs):
            self._pool.submit(self._chunks(seq, plan))
            return None
        meter, begun = self.meter, perf_counter()
        try:
            outcome = self._local.do((seq, plan, self._readers))
            meter.batches += 1  # before the batch can be taken, and the count be read
            return outcome
        finally:
            meter.worked(begun)

    def _chunks(self, seq: int, plan: Rows | Jobs) -> list[Chunk]:
        if self._assembler is not None:
            return self._assembler.cut(self._spec, seq, self._ready, plan, self._reader)
        job = Job(seq, len(plan), None, True, self._ready, chunks=1)
        task = (seq, plan, self._readers)
        return [Chunk(job, self._spec, "work", 0, 0, len(plan), NO_PAYLOAD, task=task)]

    def _meet_reader(self) -> None:
        """A table without a schema has no reader before its first step, which the plan has waited
        for.
        """
        reader = self._source.reader()
        if reader is None:
            raise AsyncLoaderError(
                f"{type(self._source).__name__} planned rows and has no reader for them"
            )
        if self._assembler is not None:
            self._spec.encode_state(reader)
        pool = self._pool
        others = (
            [self._source.reader() or reader for _ in range(1, pool.size)]
            if isinstance(pool, ThreadPool)
            else []
        )
        self._readers = LocalReaders([reader, *others])
        self._reader = reader


class InlineInput:
    """What a transfer thread takes from where the work is done inline: it does the tasks, one for
    each credit.

    There is no producer thread: that would be a second hand-over beside a busy learner.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply = supply

    def get(self, deadline: Deadline) -> Any:
        """The next outcome, or END. Raises Closed, Timeout."""
        supply = self._supply
        supply.credits.wait(supply.seq, deadline)
        seq = supply.seq
        outcome = supply.draw(NO_WAIT)
        if outcome is END or isinstance(outcome, StreamEnd):
            return END
        outcome.seq = seq
        return outcome
