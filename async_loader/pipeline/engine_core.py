"""What a loader's threads may reference: its workers and slots, and how these start, break, close
and are forked. Holds no work.

# NOTE [close order]
1. The end flag goes up: producers, the pool and every worker wait on it together with what they
wait for.
2. Queues close: threads that wait in them wake with Closed. What they held is dropped, and with it
the leases.
3. Threads are joined: streamers, which synchronise their copies before they unlock pages; the pool,
whose workers end
   after the job at hand (`workers/work.py`), are killed after half a second, and are all reaped;
producers, which may wait for a data source.
4. Descriptors are closed when no thread can wait on them any more. A thread that does not end (a
data source that blocks
   for ever) keeps its own; it is a daemon and is named in a warning.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import weakref
from typing import Any

from async_loader.errors import Broken, CannotSend, Closed, ResourceLimit
from async_loader.lifecycle import Deadline, EndFlag
from async_loader.pipeline.batches.slot_allocator import HostOutput, SlotAllocator
from async_loader.pipeline.workers.thread_pool import ThreadPool
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.process_hooks import SignalsDeferred

log = logging.getLogger("async_loader")

SPARE_SLOTS = 3
"""Batches a consumer may hold without their being copied: the one it works on, the one it gets, and
one more.
"""
_SHORT_OF = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_AFTER_CTRL_C_S = 1.0
"""For threads to end when close() was interrupted and the workers were killed."""
_POOL = "worker pool"
_UNDO_TIMEOUT_S = 5.0
"""For what a start that failed had started."""


class EngineCore:
    """Threads hold this, never the loader, so that a dropped loader can be noticed.

    Parameters
    ----------
    work_name : str
        What the workers do, in messages.
    ahead : int
        Tasks under way at most: the number of slots follows from it.
    output : HostOutput
    end : EndFlag | None
        ``None`` where there are no threads: a compat package may make one engine for each pass, and
        a flag costs a descriptor.
    slot_bytes : int | None
    always_slots : bool
        Small batches lie in slots too.
    torch_workers : bool
        torch.utils.data is imported before workers are forked, or each of them would import it.
        Otherwise torch comes after the fork: workers that only move arrays run without it.

    Attributes
    ----------
    state : {"new", "running", "broken", "closing", "closed"}
    live : set of int
        Numbers of the iterations that are in use.
    iterations : WeakSet of Iteration
    pool : WorkerPool | ThreadPool | None
        Set before the start; ``None``: there are no workers.
    """

    def __init__(
        self,
        work_name: str,
        ahead: int,
        output: HostOutput,
        end: EndFlag | None,
        *,
        slot_bytes: int | None = None,
        always_slots: bool = True,
        torch_workers: bool = True,
    ) -> None:
        self.pid = os.getpid()
        self.state = "new"
        self.end = end
        self.live: set[int] = set()
        self.iterations: weakref.WeakSet[Any] = weakref.WeakSet()
        self.slots = SlotAllocator(ahead, SPARE_SLOTS, slot_bytes, always_slots=always_slots)
        self.output = output
        self.pool: WorkerPool | ThreadPool | None = None
        self._work_name = work_name
        self._torch_workers = torch_workers
        self._broken: Broken | None = None
        self._released = False

    @property
    def ending(self) -> bool:
        """Whether the end flag was raised."""
        return self.end is not None and self.end.is_set()

    @property
    def usable(self) -> bool:
        """Whether it runs, in this process."""
        return self.pid == os.getpid() and self.state == "running"

    def start(self) -> None:
        """Start the workers. See NOTE [start order] in the package's docstring."""
        pool = self.pool
        try:
            if self._torch_workers and pool is not None:
                with SignalsDeferred():  # a torch that was imported in part stays so
                    importlib.import_module("torch.utils.data")
            if pool is not None:
                self._spawn_workers(pool)
            with SignalsDeferred():
                if not self._torch_workers:
                    importlib.import_module("torch")
                if pool is not None:
                    pool.start()
                if self.state == "new":
                    self.state = "running"
        except BaseException:
            self.close(_UNDO_TIMEOUT_S)
            raise

    def _spawn_workers(self, pool: WorkerPool | ThreadPool) -> None:
        try:
            pool.spawn_workers()
        except OSError as error:
            if error.errno not in _SHORT_OF:
                raise
            raise ResourceLimit(
                f"the workers could not be started: {error}: use fewer, or raise the limit "
                "(ulimit -u, -n)"
            ) from error
        except CannotSend as error:
            if not self._torch_workers:
                raise
            text = f"{self._work_name} cannot be sent to worker processes that are not forked"
            remedy = 'make what it holds picklable, or use multiprocessing_context="fork"'
            raise CannotSend(f"{text}: {error.__cause__ or error}: {remedy}") from error

    # -- what iterations ask -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise when no more batches can come."""
        if os.getpid() != self.pid:
            raise Closed(
                f"this loader belongs to process {self.pid}: build one in each process that needs "
                "batches"
            )
        if self.state in ("closing", "closed") or self.ending:
            raise Closed("the loader is closed")
        if self._broken is not None:
            # A new one each time: raising the same object again would grow its traceback.
            raise Broken(*self._broken.args) from self._broken.__cause__

    def break_(self, error: BaseException) -> None:
        """No more batches can come, and why. The first reason stays."""
        if self.state in ("new", "running"):
            self.state = "broken"
        broken = error if isinstance(error, Broken) else Broken(f"the loader is broken: {error!r}")
        if broken is not error:
            broken.__cause__ = error
        self._broken = self._broken or broken
        for iteration in list(self.iterations):
            for queue in iteration.queues:
                queue.break_(self._broken)

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout_s: float, used: bool = True) -> None:
        """See NOTE [close order]. Any thread, any number of times.

        ``used``: the consumer is done with the batch that it took last.
        """
        if os.getpid() != self.pid or self._released:
            return
        # Every call does all of it, also beside another one. One that came to its end has waited
        # for what is late: no later call waits for that again, above all not the exit.
        again = self.state == "closed"
        deadline = Deadline(0.0 if again else timeout_s)
        self.state = "closed" if again else "closing"
        iterations, late = list(self.iterations), [_POOL]
        self._raise_end()
        for iteration in iterations:
            iteration.close_queues()
        try:
            late = self._join(iterations, deadline)
            for iteration in iterations if not late else ():
                iteration.release_leases(deadline.left_or_inf(), used)
        except BaseException:  # Ctrl-C, or what else the handler of a signal raised
            if self.pool is not None:
                self.pool.kill()
            late = self._join(iterations, Deadline(_AFTER_CTRL_C_S))
            raise
        finally:
            if self.state != "closed":
                self.state = "closed"
                self._warn_of(late)
            if not late and not self._released:
                self._released = True
                self._release()

    def _warn_of(self, late: list[str]) -> None:
        for name in late:
            what = f" on {self._work_name}" if name == _POOL else ""
            text = (
                "closed, but the %s is still at work%s and was left behind: its thread ends "
                "with the process"
            )
            log.warning(text, name, what)

    def _join(self, iterations: list[Any], deadline: Deadline) -> list[str]:
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
