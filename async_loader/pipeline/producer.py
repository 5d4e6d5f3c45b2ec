"""The producer thread: asks the source for one plan after the other and sends it on its way."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from async_loader.errors import AsyncLoaderError, Broken, Closed
from async_loader.lifecycle import EndFlag, Patience, join
from async_loader.pipeline.batch import Failure
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.credits import Credits
from async_loader.pipeline.job_queue import NO_PAYLOAD, Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.pipeline.workers.sample_work import LocalReaders, SampleTasks
from async_loader.pipeline.workers.thread_pool import ThreadPool
from async_loader.pipeline.workers.worker_pool import WorkerPool, nothing
from async_loader.source import END, Jobs, Plan, Reader, Rows, Source
from async_loader.stats import Meter


@dataclass(slots=True)
class Executors:
    """Where the work of plans is done: in the producer thread, and by worker processes or threads if there are any."""

    local: SampleTasks
    spec: IterationSpec
    pool: WorkerPool | ThreadPool | None = None
    assembler: ChunkAssembler | None = None


class Producer:
    """One plan per ticket, until END or the end flag.

    Parameters
    ----------
    on_broken : callable
        Told when the thread cannot go on.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        credits: Credits,
        ready: TrainQueue,
        executors: Executors,
        end: EndFlag,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.meter = Meter()
        self.work_meter = Meter()
        self.planning_since: float | None = None
        self._source = source
        self._batch_size = batch_size
        self._credits = credits
        self._ready = ready
        self._executors = executors
        self._on_broken = on_broken
        self._reader: Reader | None = None
        self._readers: LocalReaders | None = None
        self._patience = Patience(end, on_wait=ready.wake_consumer)
        self._thread = threading.Thread(target=self._run, name="async-loader-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether the source waits within ``plan`` at this moment."""
        return self._patience.waiting

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended; whether it has. A source that blocks for ever cannot be ended."""
        return join(self._thread, timeout_s)

    def _run(self) -> None:
        try:
            for seq in itertools.count():
                self._credits.take()
                if not self._produce(seq):
                    return
        except Closed:
            self._ready.close()  # a dropped loader has nobody else to wake the streamer
        except BaseException as error:  # the top of a thread: forward, never die silently
            self._on_broken(Broken(f"the producer failed: {error!r}"))

    def _produce(self, seq: int) -> bool:
        """One batch; whether there may be another."""
        try:
            plan = self._plan()
            if plan is END:
                self._ready.end(seq)
                return False
            self._send(seq, plan)
        except BaseException as error:  # data for the consumer: it is raised there
            if isinstance(error, Closed) and self._patience.end is not None and self._patience.end.is_set():
                raise
            self._ready.put(seq, Failure(guarded(error)))
        return True

    def _plan(self) -> Plan:
        self.meter.work()
        self.planning_since = time.monotonic()
        try:
            return self._source.plan(self._batch_size, self._patience)
        except Closed as error:
            # A source that was closed under us is the consumer's business; our own end flag is not.
            if self._patience.end is not None and self._patience.end.is_set():
                raise
            raise AsyncLoaderError(f"the data source is closed: {error}") from error
        finally:
            self.planning_since = None
            self.meter.wait()
            self.meter.batches += 1

    def _send(self, seq: int, plan: Plan) -> None:
        executors = self._executors
        if isinstance(plan, Rows) and self._reader is None:
            self._meet_reader()
        if executors.pool is not None and isinstance(plan, Rows | Jobs):
            executors.pool.submit(self._chunks(seq, plan), nothing)
            return
        self.work_meter.work()
        try:
            outcome = executors.local.do((seq, plan, self._readers))
            self.work_meter.batches += 1  # before the batch can be taken, and the count be read
            self._ready.put(seq, outcome)
        finally:
            self.work_meter.wait()

    def _chunks(self, seq: int, plan: Rows | Jobs) -> Sequence[Chunk]:
        assembler, spec = self._executors.assembler, self._executors.spec
        if assembler is not None:
            return assembler.cut(spec, seq, self._ready, plan, self._reader)
        job = Job(seq, len(plan), None, True, self._ready, parts=1)
        return [Chunk(job, spec, "work", 0, 0, len(plan), NO_PAYLOAD, task=(seq, plan, self._readers))]

    def _meet_reader(self) -> None:
        """A table without a schema has no reader before its first step, which the plan has waited for."""
        reader = self._reader = self._source.reader()
        if reader is None:
            raise AsyncLoaderError(f"{type(self._source).__name__} planned rows and has no reader for them")
        pool = self._executors.pool
        if isinstance(pool, WorkerPool):
            self._executors.spec.encode_state(reader)
        others = [self._source.reader() or reader for _ in range(1, pool.size)] if isinstance(pool, ThreadPool) else []
        self._readers = LocalReaders([reader, *others])
