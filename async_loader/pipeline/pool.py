"""A pool of workers for the tasks of any number of iterations. Knows nothing of datasets, samplers or collation.

    tasks ──▶ Iteration ──part──▶ JobQueue ──▶ WorkerPool ──Channel──▶ worker processes: Work.begin(here)(task)
                 ▲                                                        │  arrays ──▶ slots (Places)
                 └── TrainQueue, one for each iteration ◀── Packing ◀── answers

The front doors stand on this: they turn their arguments into a `Work` and into tasks, and their errors out of ours.

# NOTE [what leads back to the pool]
A work often leads to its loader: a transform that is a method of whatever keeps the loader, or a function of the same
module. So nothing that lives as long as threads do (they themselves, the crew, the finalizer) holds the work, or the
pool could never be dropped: the pool does, and they find it through weak references. Iterations hold the pool.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any

from async_loader import process_hooks
from async_loader.errors import Broken, CannotSend, Closed
from async_loader.interrupts import SignalsAllowed, SignalsDeferred
from async_loader.lifecycle import Deadline, EndFlag, State, StateMachine
from async_loader.names import describe
from async_loader.pipeline import codec
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.iteration import InlineIterator, Iteration, PooledIterator, RoundRobin, dealt, unaddressed
from async_loader.pipeline.iterator import note_own_threads
from async_loader.pipeline.job_queue import NO_PAYLOAD, Chunk, IterationSpec, Job
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.thread_pool import ThreadPool, WorkerStates
from async_loader.pipeline.workers.work import END, Kind, Seeding, WorkerConfig, WorkerState
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.shm.malloc import keep_freed_memory
from async_loader.shm.slot_ring import SlotRing
from async_loader.stats import StageStats
from async_loader.validation import check_descriptors, context_of, one_of, refuse_start_in_child, whole

log = logging.getLogger("async_loader")

SPARE_SLOTS = 3
"""Batches a consumer may hold without their being copied: the one it works on, the one it gets, and one more."""

CLOSE_TIMEOUT_S = 5.0

_AFTER_CTRL_C_S = 1.0
"""For threads to end when close() was interrupted and the workers were killed."""


class Pool:
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
        Tasks under way at most, over all workers, where an iteration does not say. Default 2 * workers.
    seed : int | None
        Iterations that are given none take theirs from it.
    seeding : {"task", "iteration", "birth"} | None
        When a worker process seeds its global generators (random, numpy, torch): before each task, by the task's number,
        so that it does not matter who runs it; once for each iteration, as torch's workers do, by the worker's
        number; only in the first iteration of a process; never.

    Raises
    ------
    ConfigError
        For arguments that cannot work.

    Notes
    -----
    Processes start with the first iteration or with `start`. They end with `close`, with the pool, or with this process,
    however that ends. One that dies is replaced.
    """

    def __init__(
        self,
        work: Any,
        workers: int = 0,
        *,
        kind: Kind = "process",
        context: str | BaseContext | None = None,
        prefetch: int | None = None,
        seed: int | None = None,
        seeding: Seeding = "task",
    ) -> None:
        one_of("kind", kind, ("process", "thread", "inline"))
        one_of("seeding", seeding, ("task", "iteration", "birth", None))
        self.workers = 0 if kind == "inline" else whole("workers", workers, 0)
        self.kind: Kind = kind if self.workers else "inline"
        self.prefetch = 2 * self.workers if prefetch is None else whole("prefetch", prefetch, 0)
        self._context = context_of(context)
        self._seed = secrets.randbits(62) if seed is None else whole("seed", seed, 0)
        self._config = WorkerConfig(work, self.workers, seeding)
        self._numbers = itertools.count()
        self._core: _Core | None = None
        self._dropped: Any = None
        self._worker_states: WorkerStates | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def work(self) -> Any:
        """What the workers do."""
        return self._config.work

    @property
    def started(self) -> bool:
        """Whether there are workers now."""
        return self._core is not None and self._core.usable

    @property
    def pids(self) -> list[int]:
        """Of the worker processes that there are at this moment."""
        worker_pool = self._core.team if self._core is not None else None
        # One that is being replaced has none yet; 0 would mean the caller's own group to whoever sends a signal.
        return [handle.pid for handle in list(worker_pool.handles) if handle.pid] if isinstance(worker_pool, WorkerPool) else []

    @property
    def processes(self) -> list[Any]:
        """The worker processes that there are at this moment, as `multiprocessing` has them."""
        worker_pool = self._core.team if self._core is not None else None
        return [handle.process for handle in list(worker_pool.handles)] if isinstance(worker_pool, WorkerPool) else []

    @property
    def ring(self) -> SlotRing | None:
        """The slots in use."""
        return None if self._core is None else self._core.ring

    @property
    def replaced(self) -> int:
        """Worker processes that died and were started again, since all of them were started."""
        return 0 if self._core is None or self._core.team is None else self._core.team.replaced

    def stage(self) -> StageStats | None:
        """What the workers have done, with seconds summed over them; ``None`` where the consumer does it."""
        if self.kind == "inline":
            return None
        if self._core is None or self._core.team is None:
            return StageStats(0, 0, 0.0, 0.0, 0)
        return self._core.team.stage(sum(queue.depth for queue in list(self._core.queues)))

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
            raise Closed("the pool is closed")
        if self._core is None or not self._core.usable:
            self._renew()

    def _renew(self) -> None:
        """New workers: the first ones, after all of the old ones broke down, or in a forked child."""
        if self._core is not None and self._core.pid == os.getpid():
            self._core.close(CLOSE_TIMEOUT_S)
        if self._dropped is not None:
            self._dropped.detach()
        if self.kind == "process":
            refuse_start_in_child()
            check_descriptors(self.workers)
        core = self._core = _Core(self._config, self.workers, self.kind, self._context, max(1, self.prefetch))
        self._worker_states, core.worker_states = core.worker_states, None
        if self.kind != "inline":  # there nothing has to be ended
            self._dropped = weakref.finalize(self, core.abandon)
            self._dropped.atexit = False
        process_hooks.add(core)
        core.start()

    def iterate(
        self,
        tasks: Iterable[Any],
        *,
        state: Any = None,
        seed: int | None = None,
        prefetch: int | None = None,
        in_order: bool = True,
        timeout_s: float | None = None,
        static: bool = False,
        first: int = 0,
        opening: Any = END,
    ) -> Iteration:
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
            Task n goes to worker process n modulo their number, not to whoever is free: slower, but
            what a worker's global generators give is the same in every run.
        first : int
            Number of the first task, where seeds and workers follow from it: for a pass that goes
            on where another one was left.
        opening : Any
            A task that every worker does before its others, and whose outcome is no batch: see
            `Iteration.openings`. END: there is no such task.
        """
        spec = self._spec(state, seed, stream=False, first=first)
        if self.kind == "inline":
            return self._inline(spec, iter(tasks), opening)
        addressed: Any = unaddressed(tasks)
        if static and self.kind == "process":
            addressed = dealt(tasks, self.workers, first)
        return self._team(spec, addressed, prefetch, in_order, timeout_s, _ignore, (opening, self.workers))

    def streams(
        self,
        *,
        state: Any = None,
        seed: int | None = None,
        prefetch: int | None = None,
        in_order: bool = True,
        timeout_s: float | None = None,
        turn: int = 0,
        opening: Any = END,
    ) -> Iteration:
        """One pass over what the workers' own iterators give: `Work.begin` returns one in each.

        Their batches are taken in turn; a worker that has no more is left out. Threads share one
        dataset, and so one of them alone has a stream. Parameters as in `iterate`, and

        turn : int
            The worker to begin with.
        opening : Any
            Unless it is END, the first that each stream gives is no batch: see
            `Iteration.openings`.
        """
        spec = self._spec(state, seed, stream=True, first=0)
        if self.kind == "inline":
            return self._inline(spec, itertools.repeat(None), opening)
        streams = self.workers if self.kind == "process" else 1
        round_robin = RoundRobin(streams, turn)
        return self._team(spec, round_robin, prefetch, in_order, timeout_s, round_robin.drained, (opening, streams))

    def _spec(self, state: Any, seed: int | None, *, stream: bool, first: int) -> IterationSpec:
        self.start()
        assert self._core is not None
        number = next(self._numbers)
        base = (self._seed + number * 0x9E3779B97F4A7C15) % (1 << 62) if seed is None else seed
        spec = IterationSpec(number, base, state, self._core.live, stream, first)
        if self.kind == "process":
            spec.payload = codec.encode(state)
        self._core.live.add(number)
        return spec

    def _inline(self, spec: IterationSpec, tasks: Any, opening: Any) -> Iteration:
        core = self._core
        assert core is not None
        assert core.state is not None
        inline = InlineIterator(spec, core.state, tasks, core.check, _IterationCleanup(core, spec.number))
        if opening is not END:
            inline.open(opening, 1)
        return inline

    def _team(
        self,
        spec: IterationSpec,
        tasks: Any,
        prefetch: int | None,
        in_order: bool,
        timeout_s: float | None,
        on_drained: Any,
        opening: tuple[Any, int],
    ) -> Iteration:
        core = self._core
        assert core is not None
        window = max(1, self.prefetch if prefetch is None else prefetch)
        retire = _IterationCleanup(core, spec.number, self)
        team = PooledIterator(
            core, spec, tasks, window=window, in_order=in_order, timeout_s=timeout_s, on_drained=on_drained, on_close=retire
        )
        if isinstance(tasks, RoundRobin) and not in_order:
            tasks.under_way = team.jobs
        for queue in team.queues:
            core.queues.add(queue)
        task, workers = opening
        if task is not END:
            team.open(task, workers)
        team.feed()
        return team

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the workers and all iterations: idempotent, from any thread, and back within ``timeout_s``."""
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        if self._core is not None:
            self._core.close(timeout_s)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a pool of workers cannot be pickled: build one in each process that needs batches")


class _IterationCleanup:
    """What an iteration does when it is over. Holds the pool until then: an iteration outlives a loader that was dropped."""

    def __init__(self, core: _Core, number: int, pool: Pool | None = None) -> None:
        self._core, self._number, self._pool = core, number, pool

    def __call__(self) -> None:
        self._core.live.discard(self._number)
        self._pool = None


def _config_of(config: WorkerConfig | None, number: int) -> WorkerConfig:
    if config is None:  # the pool was dropped
        raise Closed("the pool is closed")
    return config.of_worker(number)


def _ignore(worker: int) -> None:
    """No stream has ended: there is none."""


class _Core:
    """Threads hold this, never the pool, so that a dropped pool can be noticed."""

    def __init__(self, config: WorkerConfig, workers: int, kind: Kind, context: BaseContext, prefetch: int) -> None:
        self.pid = os.getpid()
        self.live: set[int] = set()
        self.queues: weakref.WeakSet[TrainQueue] = weakref.WeakSet()
        self.broken: Broken | None = None
        self.team: WorkerPool | ThreadPool | None = None
        self.state: WorkerState | None = None
        self.places = SlotAllocator(prefetch, SPARE_SLOTS, None, always_slots=True)
        self.output = HostOutput(to_tensors=False, keep_slots=False)
        self.worker_states: WorkerStates | None = None
        self._what = describe(config.work)
        self._life = StateMachine()
        self._closing = threading.RLock()
        self._end = None if kind == "inline" else EndFlag()
        if self._end is None:
            self.state = WorkerState(config, "inline")
        elif kind == "process":
            known = weakref.ref(config)
            self.assembler = ChunkAssembler(self.places, self.output)
            self.team = WorkerPool(
                workers, context, self._end, self.assembler, lambda number: _config_of(known(), number), self.break_
            )
        else:
            self.worker_states = WorkerStates(workers, config)
            self.team = ThreadPool(workers, weakref.ref(self.worker_states), self._end, self.break_)

    @property
    def usable(self) -> bool:
        return self.pid == os.getpid() and self._life.state is State.RUNNING

    def start(self) -> None:
        """Other than NOTE [start order] has it, torch comes first: each forked worker would import it for itself."""
        try:
            if self.team is not None:
                with SignalsDeferred():  # a torch that was imported in part stays so
                    importlib.import_module("torch.utils.data")
                self._spawn_worker(self.team)
            with SignalsDeferred():  # a thread whose start was cut is not known
                if self.team is not None:
                    self.team.start()
                    note_own_threads()
                self._life.to(State.RUNNING)
        except BaseException:
            self.close(CLOSE_TIMEOUT_S)
            raise

    def _spawn_worker(self, team: WorkerPool | ThreadPool) -> None:
        try:
            team.spawn_workers()
        except CannotSend as error:
            text = f"{self._what} cannot be sent to worker processes that are not forked: {error.__cause__ or error}"
            raise CannotSend(f'{text}: make what it holds picklable, or use multiprocessing_context="fork"') from error

    # -- what iterations ask -----------------------------------------------------------------------------------------

    def check(self) -> None:
        if os.getpid() != self.pid:
            raise Broken(f"this iteration belongs to process {self.pid}: begin one in each process that needs batches")
        if self.broken is not None:
            # A new one each time: raising the same object again would grow its traceback.
            raise Broken(*self.broken.args) from self.broken.__cause__
        if self._life.state is not State.RUNNING:
            raise Closed("the pool is closed")

    @property
    def ring(self) -> SlotRing | None:
        return self.places.ring

    def submit(
        self, spec: IterationSpec, seq: int, ready: TrainQueue, task: Any, worker: int | None, noted: Callable[[Job], object]
    ) -> None:
        assert self.team is not None
        if isinstance(self.team, WorkerPool):
            chunk = self.assembler.whole_task(spec, seq, ready, task, worker)
        else:
            job = Job(seq, 1, None, True, ready, parts=1, worker=worker)
            chunk = Chunk(job, spec, "work", 0, 0, 1, NO_PAYLOAD, task=task, worker=worker)
        self.team.submit([chunk], lambda: noted(chunk.job))

    def diagnosis(self) -> str:
        held = self.team.waiting_for() if self.team is not None else None
        return held or "no worker has anything to do"

    def break_(self, error: BaseException) -> None:
        """No more batches can come, and why. The first reason stays."""
        self._life.to(State.BROKEN)
        broken = error if isinstance(error, Broken) else Broken(f"the pool is broken: {error!r}")
        if broken is not error:
            broken.__cause__ = error
        self.broken = self.broken or broken
        for queue in list(self.queues):
            queue.halt()

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> bool:
        """See NOTE [close order]. Any thread, any number of times; whether everything has ended."""
        if os.getpid() != self.pid:
            return True
        with self._closing, SignalsDeferred():  # the wait within lets signals through
            return self._close(timeout_s)

    def _close(self, timeout_s: float) -> bool:
        deadline = Deadline(0.0 if self._life.state is State.CLOSED else timeout_s)
        self._life.to(State.CLOSING)
        self.abandon()
        for queue in list(self.queues):
            queue.close()
        late, interrupted = False, None
        if self.team is not None:
            try:
                with SignalsAllowed():
                    late = not self.team.join(deadline.left())
            except BaseException as error:  # Ctrl-C, or whatever else the handler of a signal raised
                interrupted = error
                self.team.kill()
                late = not self.team.join(_AFTER_CTRL_C_S)
        first = self._life.to(State.CLOSED)
        if late and first:
            log.warning(
                "closed, but a worker thread is still at work on %s and was left behind: it ends with the process", self._what
            )
        if not late:
            if self.team is not None:
                self.team.jobs.clear()
            self.places.release()
            self._forget_end()
        if interrupted is not None:
            raise interrupted
        return not late

    def abandon(self) -> None:
        """The pool was dropped: tell everyone to end, wait for nobody. Runs in any thread, so it takes no lock."""
        if os.getpid() == self.pid and self._life.state is not State.CLOSED and self._end is not None:
            self._end.set()

    def _forget_end(self) -> None:
        if self._end is not None:
            self._end.close()

    def retire_leased(self) -> None:
        """See NOTE [what a fork does to leases]."""
        self.places.retire_leased()

    def after_fork_in_child(self) -> None:
        """This copy belongs to nobody: close what would keep the parent's ends open, and do nothing else ever."""
        if self.team is not None:
            self.team.forget()
        with contextlib.suppress(OSError):
            self._forget_end()
