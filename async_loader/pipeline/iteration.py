"""The stages of one pass over tasks: what draws them, where they are done, and the queues to the
consumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

from async_loader.errors import Timeout, WouldDeadlock
from async_loader.lifecycle import GAVE_UP, Deadline, Patience, join
from async_loader.pipeline.engine_core import EngineCore
from async_loader.pipeline.job_queue import IterationSpec, Job
from async_loader.pipeline.producer import DrawCosts, Supply
from async_loader.pipeline.tasks import (
    InlineTasks,
    PlanDispatch,
    SourceTasks,
    TaskDispatch,
    TaskSupplier,
)
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.process_hooks import STAGES

if TYPE_CHECKING:
    from async_loader.pipeline.device.transfer_thread import TransferThread

log = logging.getLogger("async_loader")

CLOSE_TIMEOUT_S = 5.0
_TURN_S = 0.5
"""How long close() waits for a caller that draws."""
_TELL_AFTER_S = 1.0
"""How long close() waits for a data source in silence."""


class Iteration:
    """See the module. The core holds it weakly, its threads hold parts of it, the `BatchIterator`
    holds it.

    Parameters
    ----------
    tasks : InlineTasks | TaskDispatch | PlanDispatch
    ready : TrainQueue
        Where the outcomes of tasks go.
    count : int
        Tasks under way at most.
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
    jobs : list of Job | None
        Under way, where the consumer sends tasks to workers.
    producer : Thread | None
    draws : bool
        The caller draws, with `patience`.
    patience : Patience
        Of the waits of the supplier.
    iterator : weak reference to the BatchIterator | None
    """

    def __init__(
        self,
        core: EngineCore,
        spec: IterationSpec,
        supplier: TaskSupplier,
        tasks: InlineTasks | TaskDispatch | PlanDispatch,
        ready: TrainQueue,
        count: int,
        transfer: Callable[[Any, TrainQueue], TransferThread] | None,
        costs: DrawCosts | None = None,
    ) -> None:
        self.core = core
        self.spec = spec
        self.supplier = supplier
        self.tasks = tasks
        self.train_queue = self.queue = ready
        self.supply = Supply(supplier, tasks, count, ready)
        self.jobs: list[Job] | None = tasks.jobs if isinstance(tasks, TaskDispatch) else None
        here = tasks if isinstance(tasks, InlineTasks) else None
        self.transfer: TransferThread | None = None
        if transfer is not None:
            self.queue = TrainQueue(ready.in_order)
            self.transfer = transfer(ready if here is None else self.supply, self.queue)
        self.queues: Collection[TrainQueue] = {self.train_queue, self.queue}
        self.inline = here if self.transfer is None else None
        self.producer: threading.Thread | None = None
        self.patience = self._producing = Patience(core.end, on_wait=self.queue.wake)
        self.draws = costs is not None
        self._costs = costs
        if isinstance(supplier, SourceTasks):
            assert core.end is not None
            # it keeps this object for as long as it runs: it is joined at exit
            self.producer = self.supply.producer(self._producing, core.end, self._fail)
            supplier.at_once, supplier.queue = self.draws, self.queue
            if self.draws:
                self.patience = Patience(core.end, on_wait=self.refuse_deadlock)
        self.iterator: Callable[[], Any] | None = None
        core.iterations.add(self)

    def start(self) -> None:
        """Start the threads."""
        if self.producer is not None and not self.draws:
            self.producer.start()
        if self.transfer is not None:
            self.transfer.start()

    def _fail(self, error: BaseException) -> None:
        self.core.break_(error)

    # -- what the consumer asks --------------------------------------------------------------------

    @property
    def drawing_thread(self) -> Literal["caller", "producer"]:
        """Which thread is to draw tasks."""
        return "producer" if self.producer is not None and not self.draws else "caller"

    def note_cost(self, seconds: float) -> None:
        """Note what a batch cost that the caller has drawn; the producer may take over."""
        if self._costs is None or not self._costs.note(seconds):
            return
        assert self.producer is not None
        assert isinstance(self.supplier, SourceTasks)
        self.supplier.at_once = self.draws = False
        self.patience = self._producing
        self.begin_at(self.supply.seq)
        self.supply.give(self.supply.seq)
        self.producer.start()

    def begin_at(self, seq: int) -> None:
        """Number the tasks from here on. While nothing is under way."""
        for queue in self.queues:
            queue.turn = seq
        self.supply.begin_at(seq)

    @property
    def position(self) -> int:
        """The number of the consumer's next task."""
        return self.supply.seq if self.draws else self.queue.turn

    def refuse_deadlock(self) -> None:
        """Raise when only this thread could end the wait.

        That is, the source waits for data, no other thread is there to add any, and no batch is on
        its way.
        """
        if self._source_waits() is None:
            return
        here = threading.current_thread()
        if any(t is not here and not t.name.startswith(STAGES) for t in threading.enumerate()):
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
        reason = self.supplier.waiting_for()
        # In this order: a plan that has just drawn what there was has ended its wait before, and
        # then it counts.
        out = 0 if self.draws else self.supply.seq - self.supply.given
        return reason if self.patience.waiting and out <= 0 else None

    def diagnosis(self, of_source: Timeout | None = None) -> str:
        """Which stage the consumer waits for, in words; ``of_source`` is how its draw ended."""
        pool, supplier = self.core.pool, self.supplier
        reason = supplier.waiting_for()
        if reason is None and of_source is not None:
            reason = str(of_source).replace(GAVE_UP, "it waits for ")
        if reason is None and self.patience.waiting:
            reason = f"it waits for {self.patience.reason}"
        if reason is None and supplier.planning_since is not None:
            seconds = time.monotonic() - supplier.planning_since
            reason = f"it has been at work on one batch for {seconds:.1f} s"
        if reason is not None:
            return f"the source: {reason}"
        held = None if pool is None else pool.waiting_for()
        if held is not None:
            return f"the workers: {held}"
        if self.train_queue.depth:
            if self.transfer is not None:
                return "the copy to the device"
            return "batches that come before the finished ones"
        if self.producer is None:
            return "the work: it is done in the thread that copies" if pool is None else "the order"
        return "the work: a batch is being made in the producer thread"

    # -- what the core asks ------------------------------------------------------------------------

    def close_queues(self) -> None:
        for queue in self.queues:
            queue.close()
        self.supply.close()

    def join_transfer(self, deadline: Deadline) -> list[str]:
        """Wait for the thread behind the train queue; the names of what did not end in time."""
        return [] if self.transfer is None or self.transfer.join(deadline.left()) else ["streamer"]

    def join_producer(self, deadline: Deadline) -> list[str]:
        """As `join_transfer`, of the producer."""
        producer = self.producer
        if producer is None or join(producer, min(_TELL_AFTER_S, deadline.left_or_inf())):
            return []
        left = deadline.left_or_inf()
        if left:
            text = (
                "close() waits up to %.0f s more for the %s, which has not come back: Ctrl-C "
                "ends the wait"
            )
            log.warning(text, left, self.supplier.name)
        return [] if join(producer, left) else [self.supplier.name]

    def release_leases(self, timeout_s: float, used: bool) -> None:
        """What was planned and not used belongs to the source again."""
        iterator = None if self.iterator is None else self.iterator()
        if used and iterator is not None:
            iterator.settle()
        # A caller that draws ends soon, and plans nothing later: see `Leasing`.
        held = self.supply.turn.acquire(timeout=min(timeout_s, _TURN_S))
        try:
            self.supplier.release(timeout_s)
        finally:
            if held:
                self.supply.turn.release()

    # -- its own end -------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Cancel what is under way, and wait for nothing.

        Any thread of the process that made it.
        """
        for job in self.jobs or ():
            job.over = True
        if self.jobs:
            self.jobs.clear()
        self.supplier.close()
        self.close_queues()
        if isinstance(self.tasks, InlineTasks):
            self.tasks.forget()
        self.core.live.discard(self.spec.number)

    def close(self) -> None:
        """Cancel what is under way, and wait for the transfer thread."""
        self.abandon()
        self.join_transfer(Deadline(CLOSE_TIMEOUT_S))
