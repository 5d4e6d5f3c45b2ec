"""Where the tasks of an iteration are done: inline, by the workers of a pool, or as the plans of a
source.
"""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import Any

from async_loader.errors import Closed
from async_loader.pipeline.batch import Batch, Outcome, StreamEnd
from async_loader.pipeline.batches import arena
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.job_queue import NO_PAYLOAD, Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import SampleTasks, reader_of
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
        # the number of a task is its seed's: `batch` adds the first one
        state.tell(spec.number, spec.seed, 0, {spec.number, *state.known}, lambda: spec.state)

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
        """As `batch`, with the word of the end."""
        batch = self.batch(seq, task)
        return StreamEnd(0) if batch is END else Batch(tree=batch)

    def forget(self) -> None:
        """The iteration is over."""
        state = self._state()
        if state is not None:
            state.known.pop(self._spec.number, None)


class TaskDispatch:
    """Tasks of any kind, for the workers of a pool."""

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
        """Send a task; its outcome goes to the train queue. Raises CannotSend, OutOfMemory."""
        spec, ready = self._spec, self._ready
        if self._assembler is not None:
            chunk = self._assembler.whole_task(spec, seq, ready, task, worker)
        else:
            job = Job(seq, 1, None, True, ready, chunks=1, worker=worker)
            chunk = Chunk(job, spec, "work", 0, 0, 1, NO_PAYLOAD, task=task, worker=worker)
        self.jobs.append(chunk.job)
        self._pool.submit([chunk])


class PlanDispatch:
    """Plans of a source: rows and jobs for workers if there are any, all else for this thread."""

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

    def do(self, seq: int, plan: Plan, worker: int | None) -> Outcome | None:
        """The batch of a plan; ``None``: it was sent, and its outcome goes to the train queue.

        Raises what its work raises, CannotSend, OutOfMemory.
        """
        if self._pool is not None and isinstance(plan, Rows | Jobs):
            self._pool.submit(self._chunks(seq, plan))
            return None
        meter, begun = self.meter, perf_counter()
        try:
            outcome = self._local.do((seq, plan))
            meter.batches += 1  # before the batch can be taken, and the count be read
            return outcome
        finally:
            meter.worked(begun)

    def _chunks(self, seq: int, plan: Rows | Jobs) -> list[Chunk]:
        if self._assembler is not None:
            if isinstance(plan, Rows) and self._reader is None:
                self._reader = reader_of(self._source)
                self._spec.encode_state(self._reader)
            return self._assembler.cut(self._spec, seq, self._ready, plan, self._reader)
        job = Job(seq, len(plan), None, True, self._ready, chunks=1)
        return [Chunk(job, self._spec, "work", 0, 0, len(plan), NO_PAYLOAD, task=(seq, plan))]
