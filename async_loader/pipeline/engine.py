"""The engine of a loader: builds its core, and begins iterations over it.

Loaders turn their arguments into a `Work` and into tasks, and the engine's errors into theirs.

# NOTE [what leads back to the engine]
consumer ─▶ loader ─▶ BatchIterator ─▶ Engine ─▶ work, worker states of threads, EngineCore
                           └─────────▶ Iteration ─▶ EngineCore, supplier, queues, threads
A work often leads to its loader: a transform that is a method of the object that keeps the loader,
or a function of the same module. So nothing that lives as long as threads do (they themselves, the
core, the finalizer) holds the work, or the loader could never be dropped: the engine does, and they
reach it through weak references. The core holds its iterations weakly; an iteration in use holds
the engine through its `BatchIterator`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal

from async_loader import process_hooks
from async_loader.errors import Closed
from async_loader.lifecycle import EndFlag
from async_loader.name_hints import describe
from async_loader.pipeline import codec
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.slot_allocator import HostOutput
from async_loader.pipeline.engine_core import EngineCore
from async_loader.pipeline.iteration import Iteration
from async_loader.pipeline.iterator import BatchIterator
from async_loader.pipeline.job_queue import IterationSpec
from async_loader.pipeline.tasks import (
    InlineTasks,
    IterableTasks,
    StreamTasks,
    TaskDispatch,
)
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.thread_pool import ThreadPool, WorkerStates
from async_loader.pipeline.workers.work import Kind, Seeding, Work, WorkerConfig, WorkerState
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.shm.hugepages import keep_freed_memory
from async_loader.shm.slot_leases import SlotRing
from async_loader.stats import StageStats
from async_loader.validation import context_of, refuse_start_in_child

if TYPE_CHECKING:
    from async_loader.pipeline.device.transfer_thread import StreamerInput, TransferThread

    Transfer = Callable[[StreamerInput, TrainQueue], TransferThread]

CLOSE_TIMEOUT_S = 5.0
DEVICE_AHEAD = 2
"""Batches on the device, or on their way there, beyond the one that the consumer has."""


class Engine:
    """Workers that outlive iterations, errors and each other.

    Parameters
    ----------
    work : Work
        What they do. Forked workers inherit it, others are sent it once.
    workers : int
        0: the consumer does the work itself.
    kind : {"process", "thread", "inline"}
        Threads share the work, and so the dataset in it.
    context : str | multiprocessing context | None
        Start method of processes; default as in torch, that is, of this Python.
    prefetch : int | None
        Tasks under way at most, over all workers, where an iteration does not say. Default 2 *
        workers.
    seed : int | None
        Iterations that are given none take theirs from it.
    transfer : {"device", "pin"} | None
        What follows the train queue of its iterations: a thread that copies from slots to a device,
        or one that calls a function with each batch.
    seeding : {"task", "iteration", "birth"} | None
        When a worker process seeds its global generators (random, numpy, torch): before each task,
        by the task's number, so that it does not matter who runs it; once for each iteration, as
        torch's workers do, by the worker's number; only in the first iteration of a process; never.

    Notes
    -----
    Processes start with the first iteration or with `start`. They end with `close`, with the pool,
    or with this process, however that ends. One that dies is replaced.
    """

    def __init__(
        self,
        work: Work,
        workers: int = 0,
        *,
        kind: Kind = "process",
        context: str | BaseContext | None = None,
        prefetch: int | None = None,
        seed: int | None = None,
        seeding: Seeding = "task",
        transfer: Literal["device", "pin"] | None = None,
    ) -> None:
        self.workers = 0 if kind == "inline" else workers
        self.kind: Kind = kind if self.workers else "inline"
        self.prefetch = 2 * self.workers if prefetch is None else prefetch
        self._context = context_of(context)
        self._transfer = transfer
        self._seed = secrets.randbits(62) if seed is None else seed
        self._config = WorkerConfig(work, self.workers, seeding)
        self._numbers = itertools.count()
        self._core: EngineCore | None = None
        self._dropped: Any = None
        self._worker_states: WorkerStates | None = None
        self._inline: WorkerState | None = None
        self._assembler: ChunkAssembler | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def processes(self) -> list[Any]:
        """The worker processes that there are at this moment, as `multiprocessing` has them."""
        pool = None if self._core is None else self._core.pool
        return [one.process for one in pool.handles] if isinstance(pool, WorkerPool) else []

    @property
    def ring(self) -> SlotRing | None:
        """The slots in use."""
        return None if self._core is None else self._core.slots.ring

    @property
    def replaced(self) -> int:
        """Worker processes that died and were started again, since all of them were started."""
        return 0 if self._core is None or self._core.pool is None else self._core.pool.replaced

    def pinning(self, function: Callable[[Any], Any]) -> Transfer:
        """For `iterate`: a thread that calls ``function`` with each batch, and whose batches are
        what it returns.
        """
        from async_loader.pipeline.device.transfer_thread import PinningThread

        def transfer(batches: StreamerInput, output: TrainQueue) -> TransferThread:
            assert self._core is not None
            return PinningThread(batches, output, self._core.output.hand_out, function)

        return transfer

    def stage(self) -> StageStats | None:
        """What the workers have done, with seconds summed over them; ``None`` where the consumer
        does it.
        """
        if self.kind == "inline":
            return None
        if self._core is None or self._core.pool is None:
            return StageStats()
        return self._core.pool.stage(
            sum(queue.depth for one in list(self._core.iterations) for queue in one.queues)
        )

    def start(self) -> None:
        """Start the workers now; idempotent.

        Raises
        ------
        Closed
        CannotSend
            The work cannot travel to a worker that is not forked.
        ResourceLimit
            Too few descriptors or processes.
        """
        keep_freed_memory()
        if self._closed:
            raise Closed("the loader is closed")
        if self._core is None or not self._core.usable:
            self._renew()

    def _renew(self) -> None:
        """New workers: the first ones, after all of the old ones broke down, or in a forked
        child.
        """
        if self._core is not None and self._core.pid == os.getpid():
            self._core.close(CLOSE_TIMEOUT_S)
        if self._dropped is not None:
            self._dropped.detach()
        if self.kind == "process":
            refuse_start_in_child()
        output = HostOutput(to_tensors=False, keep_slots=self._transfer == "device")
        end = None if self.kind == "inline" else EndFlag()
        ahead = max(1, self.prefetch) + (DEVICE_AHEAD if self._transfer else 0)
        core = self._core = EngineCore(describe(self._config.work), ahead, output, end)
        known = weakref.ref(self._config)

        def config(number: int) -> WorkerConfig:
            if (given := known()) is None:  # the loader was dropped
                raise Closed("the loader is closed")
            return dataclasses.replace(given, number=number)

        if end is None:
            self._inline = WorkerState(self._config, "inline")
        elif self.kind == "process":
            self._assembler = ChunkAssembler(core.slots, output)
            core.pool = WorkerPool(
                self.workers, self._context, end, self._assembler, config, core.break_
            )
        else:
            self._worker_states = WorkerStates(self.workers, config, end)
            core.pool = ThreadPool(self.workers, weakref.ref(self._worker_states), end, core.break_)
        if self.kind != "inline":  # there nothing has to be ended
            self._dropped = weakref.finalize(self, core.abandon)
            self._dropped.atexit = False
        process_hooks.add(core)
        core.start()

    def iterate(
        self,
        tasks: Iterable[Any],
        *,
        state: object = None,
        seed: int | None = None,
        static: bool = False,
        first: int = 0,
        **how: Any,
    ) -> BatchIterator:
        """One pass over ``tasks``.

        Parameters
        ----------
        tasks : iterable
            Small and picklable. Read in the consumer's thread, ``prefetch`` of them at once and
            then one per batch; one by one where the consumer does the work itself. What it raises
            comes in its turn and ends the iteration.
        state : Any
            Reaches `Work.begin` in every worker; sent once to each.
        seed : int | None
        prefetch : int | None
            Tasks under way at most, over all workers; at least one.
        in_order : bool
            Deliver in the order of the tasks; otherwise what is finished first.
        timeout_s : float | None
            For each `next`.
        static : bool
            Task n goes to worker process n modulo their number, not to any that is free: slower,
            but what a worker's global generators give is the same in every run.
        first : int
            Number of the first task, where seeds and workers follow from it: for a pass that goes
            on where another one was left.
        transfer : callable | None
            Makes the thread behind the train queue, of its input.
        """
        spec = self._spec(state, seed, stream=False, first=first)
        workers = self.workers if static and self.kind == "process" else 0
        supplier = IterableTasks(tasks, workers, first)
        return self._begin(spec, supplier, **how)

    def streams(
        self,
        *,
        state: object = None,
        seed: int | None = None,
        turn: int = 0,
        **how: Any,
    ) -> BatchIterator:
        """One pass over what the workers' own iterators give: `Work.begin` returns one in each.

        Their batches are taken in turn; a worker that has no more is left out. Threads share one
        dataset, and so one of them alone has a stream. Parameters as in `iterate`, and

        turn : int
            The worker to begin with.
        """
        spec = self._spec(state, seed, stream=True, first=0)
        supplier = StreamTasks(self.streaming, turn)
        return self._begin(spec, supplier, **how)

    @property
    def streaming(self) -> int:
        """How many workers have a stream."""
        return self.workers if self.kind == "process" else 1

    def _spec(self, state: object, seed: int | None, *, stream: bool, first: int) -> IterationSpec:
        self.start()
        assert self._core is not None
        number = next(self._numbers)
        base = (self._seed + number * 0x9E3779B97F4A7C15) % (1 << 62) if seed is None else seed
        spec = IterationSpec(number, base, state, self._core.live, stream, first)
        if self.kind == "process":
            spec.payload = codec.encode(state)
        self._core.live.add(number)
        return spec

    def _begin(
        self,
        spec: IterationSpec,
        supplier: IterableTasks | StreamTasks,
        *,
        prefetch: int | None = None,
        in_order: bool = True,
        timeout_s: float | None = None,
        transfer: Transfer | None = None,
    ) -> BatchIterator:
        core = self._core
        assert core is not None
        ready = TrainQueue(in_order)
        count = max(1, self.prefetch if prefetch is None else prefetch)
        tasks: InlineTasks | TaskDispatch
        if core.pool is None:
            assert self._inline is not None
            tasks, count = InlineTasks(self._inline, spec), DEVICE_AHEAD
        else:
            tasks = TaskDispatch(core.pool, self._assembler, spec, ready)
            count += DEVICE_AHEAD if transfer is not None else 0
            if isinstance(supplier, StreamTasks) and not in_order:
                supplier.under_way = tasks.jobs
        iteration = Iteration(core, spec, supplier, tasks, ready, count, transfer)
        iterator = BatchIterator(self, iteration, timeout_s)
        iteration.start()
        if core.pool is not None:
            iteration.supply.fill()
        return iterator

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the workers and all iterations: idempotent, from any thread, and back within
        ``timeout_s``.
        """
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        if self._core is not None:
            self._core.close(timeout_s)
