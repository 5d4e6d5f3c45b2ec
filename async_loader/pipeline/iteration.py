"""The stages of one pass over tasks: what draws them, where they are done, and the queues to the
consumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from async_loader.errors import AsyncLoaderError, Broken, Closed, Timeout, WouldDeadlock
from async_loader.lifecycle import GAVE_UP, Deadline, Patience
from async_loader.pipeline.batch import Failure, Outcome, StreamEnd
from async_loader.pipeline.dispatch import InlineInput, InlineTasks, PlanDispatch, TaskDispatch
from async_loader.pipeline.engine_core import EngineCore
from async_loader.pipeline.job_queue import IterationSpec, Job
from async_loader.pipeline.producer import Credits, DrawCosts, Producer, Supply
from async_loader.pipeline.task_supplier import SourceTasks, TaskSupplier
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.pipeline.workers.failures import guarded
from async_loader.process_hooks import note_own_threads, package_threads
from async_loader.source import END

if TYPE_CHECKING:
    from async_loader.pipeline.device.transfer_thread import TransferThread

log = logging.getLogger("async_loader")

CLOSE_TIMEOUT_S = 5.0
_TURN_S = 0.5
"""How long close() waits for a caller that draws."""
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
        Makes the thread behind the train queue, of its input and its output.
    costs : DrawCosts | None
        The caller of `next` draws until they say otherwise, then the producer; ``None``: it does
        from the beginning.

    Attributes
    ----------
    inline : InlineTasks | None
        The consumer does the tasks itself.
    queue : TrainQueue
        What the consumer takes from.
    patience : Patience | None
        Of a caller that draws; ``None``: it does not.
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
        transfer: Callable[[Any, TrainQueue], TransferThread] | None,
        costs: DrawCosts | None = None,
    ) -> None:
        self.core = core
        self.spec = spec
        self.supplier = supplier
        self.tasks = tasks
        self.train_queue = self.queue = ready
        self.credits = credits
        self.supply = Supply(supplier, tasks, credits, ready)
        here = tasks if isinstance(tasks, InlineTasks) else None
        self.transfer: TransferThread | None = None
        if transfer is not None:
            self.queue = TrainQueue(ready.in_order)
            self.transfer = transfer(
                ready if here is None else InlineInput(self.supply), self.queue
            )
        self.inline = here if self.transfer is None else None
        self.producer: Producer | None = None
        if isinstance(tasks, PlanDispatch):
            assert core.end is not None
            self.producer = Producer(self.supply, ready, core.end, self.queue.wake, self._fail)
        self.patience: Patience | None = None
        self._costs = costs
        if costs is not None:
            assert isinstance(supplier, SourceTasks)
            supplier.at_once = True
            self.patience = Patience(core.end, on_wait=self.refuse_deadlock)
        self.iterator: Callable[[], Any] = _nothing
        self._opening = TrainQueue()
        self._opening_jobs: list[Job] = []
        self._openings: list[Any] = []
        self._to_open = 0
        core.iterations.add(self)

    def start(self) -> None:
        """Start the threads."""
        if self.producer is not None and self.patience is None:
            self.producer.start()
        if self.transfer is not None:
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
                self._openings.append(tasks.batch(-1 - self.spec.first, task))
            except Exception as error:
                self._openings.append(Failure(guarded(error)))
            return
        assert isinstance(tasks, TaskDispatch)
        assert self.core.pool is not None
        for worker in range(workers):
            try:
                chunk = tasks.chunk(worker, task, worker, self._opening)
                self._opening_jobs.append(chunk.job)
                self.core.pool.submit([chunk])
            except AsyncLoaderError as error:
                if isinstance(error, Closed):
                    raise
                self._opening.put(worker, Failure(guarded(error)))
        self._to_open = workers

    def take_openings(self, deadline: Deadline) -> list[Any]:
        """What the workers answered to the task of `open`: a `Failure` for an error.

        Waits for all, returns each once.
        """
        while len(self._openings) < self._to_open:
            self.core.check()
            self._openings.append(self._opened(self._opening.get(deadline)))
        self._opening_jobs.clear()  # they hold slots
        taken, self._openings, self._to_open = self._openings, [], 0
        return taken

    def _opened(self, item: Outcome) -> Any:
        if isinstance(item, Failure):
            return item
        return END if isinstance(item, StreamEnd) else self.core.output.hand_out(item)

    # -- what the consumer asks --------------------------------------------------------------------

    @property
    def drawing_thread(self) -> Literal["caller", "producer"]:
        """Which thread is to draw tasks."""
        return "producer" if self.producer is not None and self.patience is None else "caller"

    def note_cost(self, seconds: float) -> None:
        """Note what a batch cost that the caller has drawn; the producer may take over."""
        if self._costs is None or not self._costs.note(seconds):
            return
        assert self.producer is not None
        assert isinstance(self.supplier, SourceTasks)
        self.supplier.at_once, self.patience = False, None
        for queue in (self.train_queue, self.queue):
            queue.turn = self.supply.seq
        self.credits.give(self.supply.seq)
        self.producer.start()
        note_own_threads()

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
        if self.producer is None:
            return None
        reason = self.supplier.waiting_for()
        # In this order: a plan that has just drawn what there was has ended its wait before, and
        # then it counts.
        waits = (self.patience or self.producer.patience).waiting and self._out <= 0
        return reason if waits else None

    @property
    def _out(self) -> int:
        return 0 if self.patience is not None else self.supply.out

    def diagnosis(self, of_source: Timeout | None = None) -> str:
        """Which stage the consumer waits for, in words; ``of_source`` is how its draw ended."""
        pool = self.core.pool
        held = pool.waiting_for() if pool is not None else None
        producer = self.producer
        if producer is None:
            if pool is None:  # this thread is not it: it would not wait
                return "the work: it is done in the thread that copies to the device"
            return held or "no worker has anything to do"
        reason = self.supplier.waiting_for()
        if reason is None and of_source is not None:
            reason = str(of_source).replace(GAVE_UP, "it waits for ")
        if reason is not None:
            return f"the source: {reason}"
        if producer.patience.waiting:
            return f"the source: it waits for {producer.patience.reason}"
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
        for queue in (self.train_queue, self.queue, self._opening):
            queue.break_(error)

    def close_queues(self) -> None:
        for queue in (self.train_queue, self.queue, self._opening):
            queue.close()
        self.credits.close()

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
        held = self.supply.turn.acquire(timeout=min(timeout_s, _TURN_S))
        try:
            self.supplier.release(timeout_s)
        finally:
            if held:
                self.supply.turn.release()

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
