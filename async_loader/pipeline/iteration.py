"""The stages of one pass over tasks: what draws them, where they are done, and the queues to the
consumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from async_loader.errors import (
    AsyncLoaderError,
    Broken,
    Closed,
    ConfigError,
    Timeout,
    WouldDeadlock,
)
from async_loader.held_locks import unheld
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import GAVE_UP, Deadline, Patience
from async_loader.pipeline.batch import Failure, Outcome, StreamEnd, Wakeup
from async_loader.pipeline.dispatch import InlineInput, InlineTasks, PlanDispatch, TaskDispatch
from async_loader.pipeline.draw_place import DrawingThread, DrawPlace
from async_loader.pipeline.engine_core import EngineCore
from async_loader.pipeline.job_queue import IterationSpec, Job
from async_loader.pipeline.producer import NO_WAIT, Credits, Producer, Supply
from async_loader.pipeline.task_supplier import TaskSupplier
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.process_hooks import note_own_threads, package_threads
from async_loader.source import END

if TYPE_CHECKING:
    from async_loader.pipeline.device.cuda_queue import CudaQueue
    from async_loader.pipeline.device.transfer_thread import TransferThread

log = logging.getLogger("async_loader")

CLOSE_TIMEOUT_S = 5.0
_TURN_S = 0.5
"""How long close() waits for a caller that draws: it may be that caller's own signal handler."""
_TELL_AFTER_S = 1.0
"""How long close() waits for a data source in silence."""


def seconds_since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"


class Iteration:
    """See the module. The core holds it weakly, its threads hold parts of it, the `BatchIterator`
    holds it.

    Parameters
    ----------
    tasks : InlineTasks | TaskDispatch | PlanDispatch
    ready : TrainQueue
        Where the outcomes of tasks go.
    transfer : callable | None
        Makes the thread behind the train queue of its input.

    Attributes
    ----------
    inline : InlineTasks | None
        The consumer does the tasks itself.
    queue : TrainQueue | CudaQueue
        What the consumer takes from.
    place : DrawPlace | None
        Chooses the thread that draws; ``None``: the producer, unless `draw_in` says otherwise.
    iterator : weak reference to the BatchIterator | None
    """

    def __init__(
        self,
        core: EngineCore,
        spec: IterationSpec,
        supplier: TaskSupplier,
        tasks: InlineTasks | TaskDispatch | PlanDispatch,
        ready: TrainQueue,
        credits: Credits,
        transfer: Callable[[Any], TransferThread] | None,
    ) -> None:
        self.core = core
        self.spec = spec
        self.supplier = supplier
        self.tasks = tasks
        self.train_queue = ready
        self.credits = credits
        self.supply = Supply(supplier, tasks, credits, ready)
        self.producer: Producer | None = None
        if isinstance(tasks, PlanDispatch):
            assert core.end is not None
            self.producer = Producer(self.supply, ready, core.end, self._fail)
        here = tasks if isinstance(tasks, InlineTasks) else None
        self.transfer: TransferThread | None = None
        self.queue: TrainQueue | CudaQueue = ready
        if transfer is not None:
            self.transfer = transfer(ready if here is None else InlineInput(self.supply, here))
            self.queue = self.transfer.output
        self.inline = here if self.transfer is None else None
        self.iterator: Callable[[], Any] = _no_iterator
        self.place: DrawPlace | None = None
        self._patience = NO_WAIT  # of the caller that draws
        self._gave_up: str | None = None  # what the source said when that one's time was over
        self._opening = TrainQueue()
        self._opening_jobs: list[Job] = []
        self._openings: list[Any] = []
        self._to_open = 0
        core.iterations.add(self)

    def start(self) -> None:
        """Start the threads."""
        with SignalsDeferred():  # a thread whose start was cut is not known
            if self.producer is not None:
                self.producer.start(self.place)
            if self.transfer is not None:
                self.transfer.tells = self.place is not None
                self.transfer.start()
            note_own_threads()

    # -- openings ----------------------------------------------------------------------------------

    def open(self, task: object, workers: int) -> None:
        """Have each of ``workers`` do this task before any other.

        The answers have a queue of their own: they are no batches.
        """
        tasks = self.tasks
        if isinstance(tasks, InlineTasks):
            try:
                self._openings.append(tasks.do(-1 - self.spec.first, task))
            except Exception as error:
                self._openings.append(Failure(guarded(error)))
            return
        assert isinstance(tasks, TaskDispatch)
        assert self.core.pool is not None
        for worker in range(workers):
            try:
                chunk = tasks.chunk(worker, task, worker, self._opening)
                self._opening_jobs.append(chunk.job)
                self.core.pool.submit([chunk], _nothing)
            except AsyncLoaderError as error:
                if isinstance(error, Closed):
                    raise
                self._opening.put(worker, Failure(guarded(error)))
        self._to_open = workers

    def take_openings(self, deadline: Deadline) -> list[Any]:
        """What the workers answered to the task of `open`: a `Failure` for an error.

        Waits for all, returns each once.
        """
        while self._to_open:
            self.core.check()
            item = self._opening.wait(deadline)
            with SignalsDeferred():
                self._opening.drop()
                if not isinstance(item, Wakeup):
                    self._openings.append(self._opened(item))
                    self._to_open -= 1
        self._opening_jobs.clear()  # they hold slots
        taken, self._openings = self._openings, []
        return taken

    def _opened(self, item: Outcome) -> Any:
        if isinstance(item, Failure):
            return item
        return END if isinstance(item, StreamEnd) else self.core.output.hand_out(item)

    # -- what the consumer asks --------------------------------------------------------------------

    def draw_in(self, where: Literal["caller", "thread"]) -> None:
        """Who draws tasks and does them from now on: the thread that calls `next`, or the producer
        thread.

        Any thread, any time, any number of times: no task is lost or done twice.

        Raises
        ------
        ConfigError
            Workers do the tasks, or a device follows.
        """
        if self.producer is None or self.core.pool is not None or self.transfer is not None:
            raise ConfigError(
                "only tasks of a source that are done in one thread can change over to another one"
            )
        self.producer.park(where == "caller")

    @property
    def drawing_thread(self) -> DrawingThread:
        """Which thread is to draw tasks."""
        return "caller" if self.producer is None or self.producer.parks else "producer"

    def produce_here(self, deadline: Deadline) -> None:
        """Where the caller draws, and there is no batch: make one."""
        self._gave_up = None
        producer, tasks = self.producer, self.tasks
        if producer is None or not producer.parked or not isinstance(tasks, PlanDispatch):
            return
        with unheld(producer.turn):
            if producer.parked and not self.train_queue.depth and self._device_is_ready():
                self._patience = Patience(self.core.end, deadline, self.refuse_deadlock)
                begun = perf_counter()
                try:
                    self.supply.produce_here(tasks.outcome, self._patience)
                except Timeout as error:  # the wait is over when `diagnosis` asks for its reason
                    self._gave_up = str(error).replace(GAVE_UP, "it waits for ")
                    raise
                self.note_cost(perf_counter() - begun - self._patience.waited_s)

    def _device_is_ready(self) -> bool:
        """Whether no device follows, or the caller may draw for it. Raises Broken, Closed."""
        if self.transfer is None:
            return True
        self.transfer.output.check()
        return self.supply.out <= 0 and self.transfer.opened

    def note_cost(self, seconds: float) -> None:
        """Note what a batch cost that the caller has drawn."""
        if self.place is not None and self.place.note(seconds):
            assert self.producer is not None
            self.producer.park(False)

    def refuse_deadlock(self) -> None:
        """Raise when only this thread could end the wait.

        That is, the source waits for data, no other thread is there to add any, and no batch is on
        its way.
        """
        if self._source_waits() is None:
            return
        here = threading.current_thread()
        if any(t is not here and t not in package_threads for t in threading.enumerate()):
            return
        # again: a thread that has just ended may have added what the source waited for
        reason = self._source_waits()
        if reason is not None:
            raise WouldDeadlock(
                f"{reason}, and this thread, the only one that could add to it, would wait for "
                "ever: "
                "add steps before next(), or add them from another thread"
            )

    def _source_waits(self) -> str | None:
        """What the source waits for while no batch is on its way; ``None`` when it does not
        wait, or one is.
        """
        producer = self.producer
        if producer is None:
            return None
        reason = self.supplier.waiting_for()
        # In this order: a plan that has just drawn what there was has ended its wait before, and
        # then it counts.
        return (
            reason
            if reason is not None
            and (producer.waits or self._patience.waiting)
            and self.supply.out <= 0
            else None
        )

    def diagnosis(self) -> str:
        """Which stage the consumer waits for, in words."""
        pool = self.core.pool
        held = pool.waiting_for() if pool is not None else None
        producer = self.producer
        if producer is None:
            if pool is None:  # this thread is not it: it would not wait
                return "the work: it is done in the thread that copies to the device"
            return held or "no worker has anything to do"
        reason = self.supplier.waiting_for() or self._gave_up
        if reason is not None:
            return f"the source: {reason}"
        reason = producer.waits_for
        if reason is not None:
            return f"the source: it waits for {reason}"
        since = self.supplier.planning_since
        if since is not None:
            return f"the source: it has been at work on one batch for {seconds_since(since)}"
        if held is not None:
            return f"the workers: {held}"
        if self.train_queue.depth:
            return (
                "the copy to the device"
                if self.transfer is not None
                else "batches that come before the finished ones"
            )
        if pool is not None:
            return "the workers: the job is at work in the producer thread"
        copies = "" if self.transfer is None else ", or copied to the device"
        return f"the work: a batch is being made in the producer thread{copies}"

    # -- what the core asks, see `Stages` ----------------------------------------------------------

    @property
    def depth(self) -> int:
        return self.train_queue.depth + self._opening.depth

    def break_(self, error: Broken) -> None:
        self.train_queue.halt()
        self._opening.halt()
        if self.transfer is not None:
            self.transfer.output.break_(error)

    def close_queues(self) -> None:
        self.train_queue.close()
        self._opening.close()
        self.credits.close()
        if self.transfer is not None:
            self.transfer.output.close()

    def join_transfer(self, deadline: Deadline) -> list[str]:
        return [] if self.transfer is None or self.transfer.join(deadline.left()) else ["streamer"]

    def join_producer(self, deadline: Deadline) -> list[str]:
        producer = self.producer
        if producer is None:
            return []
        left = deadline.left()
        if left is None or left > _TELL_AFTER_S:
            if producer.join(_TELL_AFTER_S):
                return []
            text = (
                "close() waits up to %.0f s more for the %s, which has not come back: Ctrl-C "
                "ends the wait"
            )
            log.warning(text, deadline.left_or_inf(), self.supplier.name)
        return [] if producer.join(deadline.left()) else [self.supplier.name]

    def release_leases(self, timeout_s: float, used: bool) -> None:
        iterator = self.iterator()
        if used and iterator is not None:
            iterator.settle()
        # A caller that draws ends soon, and plans nothing later: see `Leasing`.
        turn = None if self.producer is None else self.producer.turn
        held = turn is not None and turn.acquire(timeout=min(timeout_s, _TURN_S))
        try:
            self.supplier.release(timeout_s)
        finally:
            if turn is not None and held:
                turn.release()

    def _fail(self, error: BaseException) -> None:
        """As the core's, and it keeps this object for as long as the producer runs: it is joined at
        exit.
        """
        self.core.break_(error)

    # -- its own end -------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Cancel what is under way, and wait for nothing.

        Any thread of the process that made it.
        """
        jobs = self.tasks.jobs if isinstance(self.tasks, TaskDispatch) else []
        for job in (*jobs, *self._opening_jobs):
            job.over = True
        jobs.clear()
        self._opening_jobs.clear()
        self.supplier.close()
        self.close_queues()
        if isinstance(self.tasks, InlineTasks):
            self.tasks.forget()
        self.core.live.discard(self.spec.number)

    def close(self) -> None:
        """Cancel what is under way, and wait for the transfer thread."""
        self.abandon()
        self.join_transfer(Deadline(CLOSE_TIMEOUT_S))


def _nothing() -> None: ...


def _no_iterator() -> None: ...
