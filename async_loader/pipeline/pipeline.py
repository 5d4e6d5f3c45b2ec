"""All stages of one loader, built and ended together. Knows nothing of the user's arguments, nor of the loader."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from async_loader.errors import Broken, Closed
from async_loader.interrupts import SignalsAllowed, SignalsDeferred
from async_loader.lifecycle import Deadline, EndFlag, State, StateMachine
from async_loader.names import describe
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.codec import MainModule
from async_loader.pipeline.credits import Credits
from async_loader.pipeline.iterator import Iterator, OnError, note_own_threads, seconds_since
from async_loader.pipeline.job_queue import IterationSpec
from async_loader.pipeline.producer import Executors, Producer
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.sample_work import SampleTasks, SampleWork
from async_loader.pipeline.workers.thread_pool import ThreadPool, WorkerStates
from async_loader.pipeline.workers.work import WorkerConfig, WorkerType
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.source import Leasing, Source, waiting_for
from async_loader.stats import LoaderStats, StageStats, bottleneck

if TYPE_CHECKING:
    from async_loader.pipeline.device.backend import DeviceBackend
    from async_loader.pipeline.device.cuda_queue import CudaQueue
    from async_loader.pipeline.device.streamer import Streamer

log = logging.getLogger("async_loader")

SPARE_SLOTS = 3
"""Batches a consumer may hold without their being copied: the one it works on, the one it gets, and one more."""


_AFTER_CTRL_C_S = 1.0
"""For threads to end when close() was interrupted and the workers were killed."""


_TELL_AFTER_S = 1.0
"""How long close() waits for a data source in silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What a pipeline is built from; validated before it gets here."""

    batch_size: int
    chunk_size: int
    num_workers: int
    worker_type: WorkerType
    prefetch: int
    in_order: bool
    timeout_s: float | None
    seed: int
    on_error: OnError
    slot_bytes: int | None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], Any] | None
    context: BaseContext
    finish: Callable[[Any], Any] | None


class Pipeline:
    """Threads hold this, never the loader, so that a dropped loader can be noticed.

    Parameters
    ----------
    backend : DeviceBackend | None
        ``None`` delivers on the CPU, straight from the train queue.
    """

    def __init__(self, source: Source, settings: PipelineSettings, backend: DeviceBackend | None) -> None:
        self.life = StateMachine()
        self.end = EndFlag()
        self.broken: Broken | None = None
        self._closers = 0
        self._released = False
        self._closers_lock = threading.RLock()  # reentrant: a signal handler may close inside of close
        self.pid = os.getpid()
        self._source = source
        self._settings = settings
        s = settings
        self.places = SlotAllocator(s.prefetch, SPARE_SLOTS, s.slot_bytes, always_slots=backend is not None)
        self.train_queue = TrainQueue(s.in_order)
        self.output = HostOutput(to_tensors=True, keep_slots=backend is not None)
        credits = Credits(s.prefetch, self.end)
        work = SampleWork(None, s.collate_fn, s.worker_init_fn, s.seed, self.places, self.output)
        executors = Executors(SampleTasks(work), IterationSpec(0, s.seed, None, {0}))
        self._reserve_known()
        if s.num_workers > 1 and s.worker_type == "thread":
            self._worker_states = WorkerStates(s.num_workers, WorkerConfig(work, s.num_workers, None))
            executors.pool = ThreadPool(s.num_workers, weakref.ref(self._worker_states), self.end, self.break_)
        elif s.num_workers > 1:
            collator = LocalCollator(self.places, s.collate_fn)
            whole = s.collate_fn is not None
            executors.assembler = ChunkAssembler(self.places, self.output, collator, s.chunk_size, whole=whole)
            executors.pool = WorkerPool(s.num_workers, s.context, self.end, executors.assembler, self._config, self.break_)
        self.worker_pool = executors.pool
        self._assembler = executors.assembler
        self.producer = Producer(source, s.batch_size, credits, self.train_queue, executors, self.end, self.break_)
        self.streamer: Streamer | None = None
        self.cuda_queue: CudaQueue | None = None
        if backend is not None:
            self._add_streamer(backend)
        queue = self.cuda_queue or self.train_queue
        self.iterator = Iterator(queue, credits, source, self, self.output, s)

    def _add_streamer(self, backend: DeviceBackend) -> None:
        from async_loader.pipeline.device.cuda_queue import CudaQueue
        from async_loader.pipeline.device.streamer import Streamer

        self.cuda_queue = CudaQueue()
        self.streamer = Streamer(self.train_queue, self.cuda_queue, backend)

    def start(self) -> None:
        """See NOTE [start order]."""
        try:
            if self.worker_pool is not None:
                if self._assembler is not None:
                    self._assembler.main = MainModule()
                self.worker_pool.spawn_workers()
            with SignalsDeferred():  # a torch that was imported in part stays so, and a thread whose start was cut is not known
                importlib.import_module("torch")
                if self.worker_pool is not None:
                    self.worker_pool.start()
                self.producer.start()
                if self.streamer is not None:
                    self.streamer.start()
                note_own_threads()
                self.life.to(State.RUNNING)
        except BaseException:
            self.close(5.0)
            raise

    def _reserve_known(self) -> None:
        """Where the source knows its rows already, take the memory now: what does not fit is refused before anything runs."""
        reader = self._source.reader()
        if reader is None or reader.schema is None or self._settings.collate_fn is not None:
            return
        layout = self.places.layout(reader.schema, self._settings.batch_size)
        if self._settings.num_workers > 1:
            self.places.reserve(layout.nbytes)

    def _config(self, number: int) -> WorkerConfig:
        s = self._settings
        work = SampleWork(self._source.reader(), s.collate_fn, s.worker_init_fn, s.seed)
        return WorkerConfig(work, s.num_workers, None, torch_workers=False, number=number)

    # -- what the iterator asks --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise when no more batches can come."""
        if os.getpid() != self.pid:
            raise Closed(f"this loader belongs to process {self.pid}: build one in each process that needs batches")
        if self.life.state in (State.CLOSING, State.CLOSED) or self.end.is_set():
            raise Closed("the loader is closed")
        if self.broken is not None:
            # A new one each time: raising the same object again would grow its traceback.
            raise Broken(*self.broken.args) from self.broken.__cause__

    def break_(self, error: BaseException) -> None:
        """No more batches can come, and why. The first reason stays."""
        self.life.to(State.BROKEN)
        broken = error if isinstance(error, Broken) else Broken(f"the loader is broken: {error!r}")
        if broken is not error:
            broken.__cause__ = error
        self.broken = self.broken or broken
        self.train_queue.halt()
        if self.cuda_queue is not None:
            self.cuda_queue.break_(self.broken)

    def receive(self, item: Any) -> Any:
        assert self.streamer is not None
        return self.streamer.receive(item)

    @property
    def source_waits(self) -> bool:
        return self.producer.waits

    def diagnosis(self) -> str:
        """Whom everyone waits for, in words."""
        reason = waiting_for(self._source)
        if reason is not None:
            return f"the source: {reason}"
        since = self.producer.planning_since
        if since is not None:
            return f"the source: it has been at work on one batch for {seconds_since(since)}"
        held = self.worker_pool.waiting_for() if self.worker_pool is not None else None
        if held is not None:
            return f"the workers: {held}"
        if self.train_queue.depth:
            return "the copy to the device" if self.streamer is not None else "batches that come before the finished ones"
        return "the workers: the job is at work in the producer thread"

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, used: bool = True) -> bool:
        """See NOTE [close order]. Any thread, any number of times; whether everything has ended.

        ``used``: the consumer is done with the batch that it took last.
        """
        if os.getpid() != self.pid:
            return True
        with SignalsDeferred():  # the waits within let signals through; what is between them is done as a whole
            return self._close(timeout_s, used)

    def _close(self, timeout_s: float, used: bool) -> bool:
        with self._closers_lock:
            if self._released:
                return True
            self._closers += 1
        # Every call does all of it, also beside or inside another one (a signal handler), which may never come to its end.
        # One that came to its end has waited for what is late; nobody waits for that again, least of all the exit.
        deadline = Deadline(0.0 if self.life.state is State.CLOSED else timeout_s)
        self.life.to(State.CLOSING)
        interrupted: BaseException | None = None
        try:
            self.end.set()
            self._close_queues()
            try:
                with SignalsAllowed():
                    late = self._join(deadline)
                    if not late:
                        self._release_leases(deadline, used)
            except BaseException as error:  # Ctrl-C, or whatever else the handler of a signal raised
                interrupted = error
                if self.worker_pool is not None:
                    self.worker_pool.kill()
                late = self._join(Deadline(_AFTER_CTRL_C_S))
        finally:
            first = self.life.to(State.CLOSED)
            with self._closers_lock:
                self._closers -= 1
        if first:
            for name in late:
                log.warning("closed, but the %s is still at work and was left behind: its thread ends with the process", name)
        with self._closers_lock:
            if not late and not self._closers and not self._released:
                self._released = True
                self._release()
        if interrupted is not None:
            raise interrupted
        return not late

    def _release_leases(self, deadline: Deadline, used: bool) -> None:
        """What was planned and not used is the source's again."""
        if not isinstance(self._source, Leasing):
            return
        if used:
            self.iterator.settle()
        self._source.release(deadline.left() or 0.0)

    def abandon(self) -> None:
        """The loader was dropped: tell everyone to end, wait for nobody. Runs in any thread, so it takes no lock."""
        if os.getpid() == self.pid and not self._released:
            self.end.set()

    def _close_queues(self) -> None:
        self.train_queue.close()
        if self.cuda_queue is not None:
            self.cuda_queue.close()

    def _join(self, deadline: Deadline) -> list[str]:
        """Wait for every thread; the stages that did not end in time."""
        stages: list[tuple[str, Any]] = [(f"data source {self._source_name}", self.producer)]
        if self.worker_pool is not None:
            stages.append(("worker pool", self.worker_pool))
        if self.streamer is not None:
            stages.append(("streamer", self.streamer))
        # A source that blocks must not eat the time of the others.
        late = [name for name, stage in reversed(stages[1:]) if not stage.join(deadline.left())]
        return late if self._join_source(deadline) else [*late, stages[0][0]]

    def _join_source(self, deadline: Deadline) -> bool:
        left = deadline.left()
        if left is None or left <= _TELL_AFTER_S:
            return self.producer.join(left)
        if self.producer.join(_TELL_AFTER_S):
            return True
        text = "close() waits up to %.0f s more for the data source %s, which has not come back: Ctrl-C ends the wait"
        log.warning(text, deadline.left() or 0.0, self._source_name)
        return self.producer.join(deadline.left())

    def _release(self) -> None:
        """Nobody waits on our descriptors any more, nor writes into the ring: what is lent keeps its mapping."""
        if self.worker_pool is not None:
            self.worker_pool.jobs.clear()  # what the producer had still cut
        self.places.release()
        self.end.close()

    @property
    def _source_name(self) -> str:
        return describe(getattr(self._source, "function", self._source))

    def retire_leased(self) -> None:
        """See NOTE [what a fork does to leases]."""
        self.places.retire_leased()

    def after_fork_in_child(self) -> None:
        """This copy belongs to nobody: close what would keep the parent's ends open, and do nothing else ever."""
        if self.worker_pool is not None:
            self.worker_pool.forget()
        with contextlib.suppress(OSError):
            self.end.close()

    # -- numbers -----------------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """A snapshot; cheap, takes no lock."""
        producer, ring = self.producer, self.places.ring
        copy_meter = self.streamer.meter if self.streamer is not None else None
        source = producer.meter.snapshot(len(self.worker_pool.jobs) if self.worker_pool is not None else 0)
        workers = producer.work_meter.snapshot(self.train_queue.depth)
        if self.worker_pool is not None:
            workers = self.worker_pool.stage(self.train_queue.depth)
        copy = StageStats(0, 0, 0.0, 0.0, 0)
        if copy_meter is not None and self.cuda_queue is not None:
            copy = copy_meter.snapshot(self.cuda_queue.depth)
        learner = self.iterator.meter.snapshot(0)
        return LoaderStats(
            source=source,
            workers=workers,
            copy=copy,
            learner=learner,
            slots=0 if ring is None else ring.count,
            slots_lent=0 if ring is None else ring.lent,
            copied_out=self.output.copied_small + self.output.copied_short,
            skipped=self.iterator.skipped,
            interrupted=self.iterator.interrupted,
            workers_replaced=0 if self.worker_pool is None else self.worker_pool.replaced,
            bottleneck=bottleneck(source, workers, copy, learner, one_thread=self.worker_pool is None),
        )
