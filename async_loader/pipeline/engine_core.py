"""What a loader's threads may reference: its workers and slots, and how these start, break, close
and are forked. Holds no work.

# NOTE [close order]
1. The end flag goes up: producers, the pool and every worker wait on it together with what they
wait for.
2. Queues close: threads that wait in them wake with Closed. What they held is dropped, and with it
the leases.
3. Threads are joined: streamers, which synchronise their copies before they unlock pages; the pool,
whose workers end
   after the job at hand (`workers/ending.py`), are killed after half a second, and are all reaped;
producers, which may wait for a data source.
4. Descriptors are closed when no thread can wait on them any more. A thread that does not end (a
data source that blocks
   for ever) keeps its own; it is a daemon and is named in a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Protocol

from async_loader.errors import Broken, CannotSend, Closed
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, EndFlag, State, StateMachine
from async_loader.pipeline.batches.assembler import ChunkAssembler
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.pipeline.workers.thread_pool import ThreadPool, WorkerStates
from async_loader.pipeline.workers.work import Kind, WorkerConfig
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.process_hooks import note_own_threads

log = logging.getLogger("async_loader")

SPARE_SLOTS = 3
"""Batches a consumer may hold without their being copied: the one it works on, the one it gets, and
one more.
"""
_AFTER_CTRL_C_S = 1.0
"""For threads to end when close() was interrupted and the workers were killed."""
_POOL = "worker pool"
_UNDO_TIMEOUT_S = 5.0
"""For what a start that failed had started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """What an engine is built from; validated before it gets here.

    Attributes
    ----------
    unit : {"loader", "iteration"}
        What a forked child cannot use, in messages.
    work_name : str
        What the workers do, in messages.
    ahead : int
        Tasks under way at most: the number of slots follows from it.
    always_slots : bool
        Small batches lie in slots too.
    torch_workers : bool
        torch.utils.data is imported before workers are forked, or each of them would import it.
        Otherwise torch comes after the fork: workers that only move arrays run without it.
    """

    unit: str
    work_name: str
    kind: Kind
    workers: int
    context: BaseContext
    ahead: int
    slot_bytes: int | None = None
    always_slots: bool = True
    torch_workers: bool = True


class Stages(Protocol):
    """The queues and threads of one iteration, as the core breaks and ends them."""

    @property
    def depth(self) -> int:
        """Outcomes that wait for the consumer."""

    def break_(self, error: Broken) -> None:
        """No more batches can come."""

    def close_queues(self) -> None: ...

    def join_transfer(self, deadline: Deadline) -> list[str]:
        """Wait for the thread behind the train queue; the names of what did not end in time."""

    def join_producer(self, deadline: Deadline) -> list[str]: ...

    def release_leases(self, timeout_s: float, used: bool) -> None:
        """What was planned and not used belongs to the source again."""


class EngineCore:
    """Threads hold this, never the loader, so that a dropped loader can be noticed.

    Attributes
    ----------
    live : set of int
        Numbers of the iterations that are in use.
    iterations : WeakSet of Stages
    end : EndFlag | None
        ``None`` where there are no threads: a compat package may make one engine for each pass, and
        a flag costs a descriptor.
    """

    def __init__(self, settings: CoreSettings, output: HostOutput, end: EndFlag | None) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.life = StateMachine()
        self.end = end
        self.broken: Broken | None = None
        self.live: set[int] = set()
        self.iterations: weakref.WeakSet[Stages] = weakref.WeakSet()
        self.slots = SlotAllocator(
            settings.ahead, SPARE_SLOTS, settings.slot_bytes, always_slots=settings.always_slots
        )
        self.output = output
        self.pool: WorkerPool | ThreadPool | None = None
        self._released = False

    def use_processes(
        self, assembler: ChunkAssembler, config: Callable[[int], WorkerConfig]
    ) -> None:
        assert self.end is not None
        s = self.settings
        self.pool = WorkerPool(s.workers, s.context, self.end, assembler, config, self.break_)

    def use_threads(self, states: WorkerStates) -> None:
        assert self.end is not None
        self.pool = ThreadPool(self.settings.workers, weakref.ref(states), self.end, self.break_)

    @property
    def ending(self) -> bool:
        """Whether the end flag was raised."""
        return self.end is not None and self.end.is_set()

    @property
    def usable(self) -> bool:
        """Whether it runs, in this process."""
        return self.pid == os.getpid() and self.life.state is State.RUNNING

    def start(self) -> None:
        """Start the workers. See NOTE [start order] in the package's docstring."""
        try:
            if self.settings.torch_workers and self.pool is not None:
                with SignalsDeferred():  # a torch that was imported in part stays so
                    importlib.import_module("torch.utils.data")
            if self.pool is not None:
                self._spawn_workers(self.pool)
            with SignalsDeferred():
                if not self.settings.torch_workers:
                    importlib.import_module("torch")
                if self.pool is not None:
                    self.pool.start()
                    note_own_threads()
                self.life.to(State.RUNNING)
        except BaseException:
            self.close(_UNDO_TIMEOUT_S)
            raise

    def _spawn_workers(self, pool: WorkerPool | ThreadPool) -> None:
        try:
            pool.spawn_workers()
        except CannotSend as error:
            if not self.settings.torch_workers:
                raise
            text = (
                f"{self.settings.work_name} cannot be sent to worker processes that are not forked"
            )
            remedy = 'make what it holds picklable, or use multiprocessing_context="fork"'
            raise CannotSend(f"{text}: {error.__cause__ or error}: {remedy}") from error

    # -- what iterations ask -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise when no more batches can come."""
        unit = self.settings.unit
        if os.getpid() != self.pid:
            if unit == "loader":
                raise Closed(
                    f"this loader belongs to process {self.pid}: build one in each process that "
                    "needs batches"
                )
            raise Broken(
                f"this {unit} belongs to process {self.pid}: begin one in each process that needs "
                "batches"
            )
        if (self.end is not None and self.end.is_set()) or self.life.state in (
            State.CLOSING,
            State.CLOSED,
        ):
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
        for iteration in list(self.iterations):
            iteration.break_(self.broken)

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout_s: float, used: bool = True) -> bool:
        """See NOTE [close order]. Any thread, any number of times; whether everything has ended.

        ``used``: the consumer is done with the batch that it took last.
        """
        if os.getpid() != self.pid:
            return True
        if self._released:
            return True
        # Every call does all of it, also beside another one. One that came to its end has waited
        # for what is late: no later call waits for that again, above all not the exit.
        deadline = Deadline(0.0 if self.life.state is State.CLOSED else timeout_s)
        self.life.to(State.CLOSING)
        iterations, late = list(self.iterations), [_POOL]
        self._raise_end()
        for iteration in iterations:
            iteration.close_queues()
        try:
            late = self._join(iterations, deadline)
            if not late:
                for iteration in iterations:
                    iteration.release_leases(deadline.left_or_inf(), used)
        except BaseException:  # Ctrl-C, or what else the handler of a signal raised
            if self.pool is not None:
                self.pool.kill()
            late = self._join(iterations, Deadline(_AFTER_CTRL_C_S))
            raise
        finally:
            if self.life.to(State.CLOSED):
                self._warn_of(late)
            if not late and not self._released:
                self._released = True
                self._release()
        return not late

    def _warn_of(self, late: list[str]) -> None:
        for name in late:
            what = f" on {self.settings.work_name}" if name == _POOL else ""
            text = (
                "closed, but the %s is still at work%s and was left behind: its thread ends "
                "with the process"
            )
            log.warning(text, name, what)

    def _join(self, iterations: list[Stages], deadline: Deadline) -> list[str]:
        """Wait for every thread; the names of those that did not end in time.

        Producers last: a source that blocks must not eat the time of the others.
        """
        late = [name for iteration in iterations for name in iteration.join_transfer(deadline)]
        if self.pool is not None and not self.pool.join(deadline.left()):
            late.append(_POOL)
        return late + [
            name for iteration in iterations for name in iteration.join_producer(deadline)
        ]

    def _raise_end(self) -> None:
        if self.end is not None:
            self.end.set()

    def _release(self) -> None:
        """No thread waits on our descriptors any more, nor writes into the ring: what is lent keeps
        its mapping.
        """
        if self.pool is not None:
            self.pool.jobs.clear()  # what a producer had still cut
        self.slots.release()
        if self.end is not None:
            self.end.close()

    def abandon(self) -> None:
        """The loader was dropped: signal the end, and wait for nothing.

        Runs in any thread, so it takes no lock.
        """
        if os.getpid() == self.pid and not self._released:
            self._raise_end()

    # -- forks, see process_hooks ------------------------------------------------------------------

    def retire_leased(self) -> None:
        """See NOTE [what a fork does to leases]."""
        self.slots.retire_leased()

    def after_fork_in_child(self) -> None:
        """Close the inherited descriptors. It cannot be used from here on."""
        if self.pool is not None:
            self.pool.forget()
        with contextlib.suppress(OSError):
            if self.end is not None:
                self.end.close()
