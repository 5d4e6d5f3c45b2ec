"""The engine core and the one endless iteration of an AsyncDataLoader.

Knows neither the user's arguments nor the loader.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from async_loader.errors import ConfigError
from async_loader.lifecycle import EndFlag
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.local_collator import LocalCollator, Transform
from async_loader.pipeline.batches.output_buffers import OutputBuffers
from async_loader.pipeline.batches.slot_allocator import HostOutput
from async_loader.pipeline.engine_core import EngineCore
from async_loader.pipeline.iteration import Iteration
from async_loader.pipeline.iterator import BatchIterator, OnError
from async_loader.pipeline.job_queue import IterationSpec
from async_loader.pipeline.producer import DrawCosts
from async_loader.pipeline.tasks import PlanDispatch, SourceTasks
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import SampleTasks, SampleWork
from async_loader.pipeline.workers.thread_pool import ThreadPool, WorkerStates
from async_loader.pipeline.workers.work import WorkerConfig, WorkerType
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.shm.segment import check_batch_fits
from async_loader.source import AnyThread, Source
from async_loader.stats import LoaderStats, StageStats, bottleneck

if TYPE_CHECKING:
    from async_loader.pipeline.device.cuda_backend import CudaBackend
    from async_loader.pipeline.device.transfer_thread import StreamerInput, TransferThread


class SourceEngine:
    """One engine and one iteration without end. The loader holds it, threads do not.

    Parameters
    ----------
    backend : CudaBackend | None
        ``None`` delivers on the CPU, straight from the train queue.
    buffers : OutputBuffers | None
        The caller's tensors, into which batches are copied.
    first : int
        The number of the first batch.
    others
        The loader's, validated before they get here.
    """

    def __init__(
        self,
        source: Source,
        backend: CudaBackend | None,
        *,
        batch_size: int,
        chunk_size: int,
        num_workers: int,
        worker_type: WorkerType,
        prefetch: int,
        in_order: bool,
        timeout_s: float | None,
        seed: int,
        on_error: OnError,
        slot_bytes: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        transform: Callable[..., Any] | None,
        worker_init_fn: Callable[[int], Any] | None,
        context: BaseContext,
        finish: Callable[[Any], Any] | None,
        buffers: OutputBuffers | None = None,
        first: int = 0,
    ) -> None:
        of_batch = Transform.of(source, transform, collate_fn is not None)
        whole = collate_fn is not None or of_batch is not None
        # a user's function may depend on the thread that calls it
        here = num_workers <= 1 and not whole and isinstance(source, AnyThread)
        if not prefetch and not here:
            raise ConfigError(
                "prefetch=0: the thread that calls next draws rows of a table or of columns alone, "
                "without workers, a collate_fn or a transform: say prefetch=1"
            )
        costs = (DrawCosts() if prefetch else DrawCosts(math.inf)) if here else None
        prefetch = max(1, prefetch)
        reader = source.reader()
        schema = None if reader is None else reader.schema
        if schema is not None:
            check_batch_fits(schema.nbytes * batch_size, f"batch_size={batch_size:,}")

        def config(number: int) -> WorkerConfig:
            work = SampleWork(source.reader(), collate_fn, worker_init_fn, seed, of_batch)
            return WorkerConfig(work, num_workers, None, torch_workers=False, number=number)

        kind = worker_type if num_workers > 1 else "inline"
        output = HostOutput(to_tensors=True, keep_slots=backend is not None)
        end = EndFlag()
        core = self.core = EngineCore(
            "its jobs",
            prefetch,
            output,
            end,
            slot_bytes=slot_bytes,
            always_slots=backend is not None,
            torch_workers=False,
        )
        slots = core.slots
        work = SampleWork(None, collate_fn, worker_init_fn, seed, of_batch, source, slots, output)
        # Where the source knows its rows already, take the memory now: what does not fit is refused
        # before anything runs.
        if schema is not None and collate_fn is None:
            layout = slots.layout(schema, batch_size)
            if num_workers > 1:
                slots.reserve(layout.nbytes)
        assembler: ChunkAssembler | None = None
        if kind == "thread":
            self._worker_states = WorkerStates(
                num_workers, lambda n: WorkerConfig(work, num_workers, None, number=n), end
            )
            states = weakref.ref(self._worker_states)
            core.pool = ThreadPool(num_workers, states, end, core.break_)
        elif kind == "process":
            collator = LocalCollator(slots, collate_fn)
            assembler = ChunkAssembler(slots, output, collator, chunk_size, whole=whole)
            core.pool = WorkerPool(num_workers, context, end, assembler, config, core.break_)
        ready = TrainQueue(in_order)
        spec = IterationSpec(0, seed, None, core.live)
        core.live.add(0)
        local = SampleTasks(work, ending=end)
        self._tasks = PlanDispatch(source, local, core.pool, assembler, spec, ready)
        self._supplier = SourceTasks(source, batch_size)
        transfer = None if backend is None else _streamer(backend, None if finish else buffers)
        self.iteration = Iteration(
            core,
            spec,
            self._supplier,
            self._tasks,
            ready,
            prefetch,
            transfer,
            costs,
        )
        self.iteration.begin_at(first)
        self.iterator = BatchIterator(
            None,
            self.iteration,
            timeout_s,
            on_error=on_error,
            warns=True,
            finish=finish,
            fill=None if buffers is None else buffers.fill,
        )

    def start(self) -> None:
        """See NOTE [start order]."""
        self.core.start()
        self.iteration.start()

    def state(self) -> dict[str, Any]:
        """Where the consumer is: the number of its next batch, and the source before that."""
        position = self.iteration.position
        return {"batches": position, "source": self._supplier.state(position)}

    def stats(self) -> LoaderStats:
        """A snapshot; cheap, takes no lock."""
        pool, ring, output, iterator = (
            self.core.pool,
            self.core.slots.ring,
            self.core.output,
            self.iterator,
        )
        depth = self.iteration.train_queue.depth
        source = self._supplier.meter.snapshot(0 if pool is None else len(pool.jobs))
        workers = self._tasks.meter.snapshot(depth) if pool is None else pool.stage(depth)
        copy = iterator.stage() or StageStats()
        learner = iterator.meter.snapshot(0)
        return LoaderStats(
            source=source,
            workers=workers,
            copy=copy,
            learner=learner,
            slots=0 if ring is None else ring.count,
            slots_lent=0 if ring is None else ring.lent,
            copied_out=output.copied_small + output.copied_short,
            skipped=iterator.skipped,
            workers_replaced=0 if pool is None else pool.replaced,
            drawing_thread=self.iteration.drawing_thread,
            bottleneck=bottleneck(source, workers, copy, learner, one_thread=pool is None),
            durations=tuple(iterator.meter.durations),
        )


def _streamer(
    backend: CudaBackend, buffers: OutputBuffers | None
) -> Callable[[StreamerInput, TrainQueue], TransferThread]:
    from async_loader.pipeline.device.streamer import Streamer

    if buffers is None:
        return partial(Streamer, backend=backend)
    return partial(Streamer, backend=backend, covers=buffers.covers)
