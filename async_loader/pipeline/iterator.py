"""What stands behind ``next(loader)``: waits for an outcome, turns it into tensors, and gives the ticket back, once."""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

from async_loader.errors import Timeout, WouldDeadlock
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure, Wakeup
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.credits import Credits
from async_loader.source import END, Leasing, Source, waiting_for
from async_loader.stats import Meter

OnError = Literal["raise", "skip", "fatal"]

_WARN_AFTER_S = 10.0
_MAX_SKIPS = 100
"""Failures in a row that ``on_error="skip"`` passes over; more than that is not an odd sample but a broken source."""

package_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of loaders, which never add data to a source."""

_STAGES = tuple(f"async-loader-{stage}" for stage in ("producer", "worker-pool", "streamer", "worker-"))


def note_own_threads() -> None:
    """Add the loaders' threads that run now. Those that take in rows (of other processes, of a feeder) are none of them."""
    package_threads.update(thread for thread in threading.enumerate() if thread.name.startswith(_STAGES))


class OutcomeQueue(Protocol):
    """The consumer's end of the train queue or the cuda queue. See NOTE [taken once] in train_queue.py."""

    def front(self) -> Any: ...

    def wait(self, deadline: Deadline) -> Any: ...

    def drop(self) -> None: ...


class IteratorSettings(Protocol):
    """What a loader's settings say of ``next``."""

    @property
    def on_error(self) -> OnError: ...

    @property
    def timeout_s(self) -> float | None:
        """For each `next`. Without one it warns once when nothing came for ten seconds."""

    @property
    def finish(self) -> Callable[[Any], Any] | None:
        """Makes what is handed out of a batch of tensors. Called in the consumer's thread; may be called again."""


class PipelineApi(Protocol):
    """What the iterator asks of the pipeline around it."""

    def check(self) -> None:
        """Raise when no more batches can come."""

    def diagnosis(self) -> str:
        """Whom everyone waits for, in words."""

    def break_(self, error: BaseException) -> None: ...

    @property
    def source_waits(self) -> bool:
        """Whether the source waits for data within ``plan`` at this moment."""

    def receive(self, batch: Batch) -> Any:
        """Finish a batch of the cuda queue, in the consumer's thread."""


NOTHING: Any = object()


class Iterator:
    """One consumer at a time.

    # NOTE [handed out once]
    A batch goes from the queue to the program in steps that can each be repeated: found in the queue, made ready, `held`,
    dropped from the queue, its ticket given back. Whichever step a signal interrupts, the next call finishes the others and
    hands out the same batch. `held` is emptied by the ``finally`` of the outermost ``__next__`` as it returns: between that
    and the program Python handles no signal.

    Parameters
    ----------
    how : How

    Attributes
    ----------
    held : Any
        The batch that is handed out next, a Failure, or NOTHING.
    """

    def __init__(
        self,
        queue: OutcomeQueue,
        credits: Credits,
        source: Source,
        pipeline_api: PipelineApi,
        output: HostOutput,
        how: IteratorSettings,
    ) -> None:
        self.meter = Meter()
        self.skipped = 0
        self.held: Any = NOTHING
        self._owed = False  # what is held is still in the queue, and its ticket is still out
        self._outcomes = 0
        self._queue = queue
        self._credits = credits
        self._source = source
        self._pipeline_api = pipeline_api
        self._output = output
        self._on_error = how.on_error
        self._timeout_s = how.timeout_s
        self._finish = how.finish
        self._warned = False
        self._lease: object = None  # of the batch that is held, or was handed out last, until that is used
        self._pid = os.getpid()

    def hold(self) -> None:
        """See to it that `held` is the next batch.

        Raises
        ------
        StopIteration
            The source has ended.
        Closed, Broken, Timeout, WouldDeadlock
        BaseException
            What a job, a collate_fn or the source raised.
        """
        meter = self.meter
        meter.wait()
        try:
            if self._owed:
                self._pay()
            if self.held is not NOTHING:
                self._resume()
            if self.held is NOTHING:
                if self._lease is not None:
                    self.settle()
                # As a rule a batch is ready, and nothing else need be looked at; caches are cold here, so every call counts.
                item = self._queue.front()
                if item is None or os.getpid() != self._pid or not self._hold(item):
                    self._hold_next(Deadline(self._timeout_s))
            if self._owed:
                self._pay()
        finally:
            meter.work()
        if isinstance(self.held, Failure):
            try:
                raise self.held.error
            finally:
                self.held = NOTHING

    def settle(self) -> None:
        """The batch that was handed out last is used, where its source wants to know that. Twice does no harm."""
        if self._lease is not None and self.held is NOTHING:
            cast(Leasing, self._source).settle(self._lease)
            self._lease = None

    @property
    def interrupted(self) -> int:
        """Batches that a call had taken when it was interrupted, and that were not handed out since: 0 or 1."""
        return int(self.held is not NOTHING)

    def _hold(self, item: Any) -> bool:
        """Whether it is held. It is not, if its source delivers it elsewhere by now."""
        try:
            batch = self._output.hand_out(item) if item.device is None else self._pipeline_api.receive(item)
            if self._finish is not None:
                batch = self._finish(batch)
        except Exception as error:  # of this batch alone, as far as can be known: the next call goes on with the next one
            self.held, self._owed = Failure(error), True
            return True
        # Last of all: what Ctrl-C ends before goes back unseen.
        if item.lease is not None and not cast(Leasing, self._source).hand_out(item.lease):
            self._owed = True
            return False
        self.held, self._owed, self._lease = batch, True, item.lease
        return True

    def _resume(self) -> None:
        """A call before this one was interrupted: what it held comes now."""
        self._pipeline_api.check()
        if isinstance(self.held, Failure) and self._on_error == "skip":
            self._skip()

    def _pay(self) -> None:
        """What was found is no longer the queue's, and there may be another in its place."""
        self._queue.drop()
        given = self.held is not NOTHING and not isinstance(self.held, Failure)
        done, batches = self._outcomes + 1, self.meter.batches + given
        self._credits.give(done)
        self._outcomes, self.meter.batches, self._owed = done, batches, False

    def _skip(self) -> None:
        if self._owed:
            self._pay()
        self.held, self.skipped = NOTHING, self.skipped + 1

    def _hold_next(self, deadline: Deadline) -> None:
        for failed in itertools.count(1):
            item = self._next_outcome(deadline)
            if item is NOTHING:
                return
            self.held, self._owed = item, True
            if self._on_error != "skip":
                break
            self._skip()
            if failed == _MAX_SKIPS:
                item.error.add_note(f"{_MAX_SKIPS} batches in a row have failed; the others were skipped")
                raise item.error
        if self._on_error == "fatal":
            self._pipeline_api.break_(self.held.error)

    def _next_outcome(self, deadline: Deadline) -> Any:
        """A Failure, or NOTHING once a batch is held."""
        while True:
            if self._owed:
                self._pay()
            item = self._wait(deadline)
            if item is END:
                raise StopIteration
            if isinstance(item, Failure):
                return item
            if self._hold(item):
                return NOTHING

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, deadline: Deadline) -> Any:
        part = self._first_part(deadline)
        while True:
            self._pipeline_api.check()
            self._refuse_deadlock()
            try:
                item = self._queue.wait(part)
            except Timeout:
                self._give_up_or_warn(deadline)
                part = deadline
                continue
            if not isinstance(item, Wakeup):
                return item
            self._queue.drop()

    def _first_part(self, deadline: Deadline) -> Deadline:
        left = deadline.left()
        return Deadline(_WARN_AFTER_S) if left is None and not self._warned else deadline

    def _give_up_or_warn(self, deadline: Deadline) -> None:
        self._pipeline_api.check()
        if deadline.expired:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self._pipeline_api.diagnosis()}")
        self._warned = True
        text = f"no batch for {_WARN_AFTER_S:g} s: {self._pipeline_api.diagnosis()}. next() goes on waiting; "
        text += "a loader with timeout_s= raises Timeout instead"
        warnings.warn(text, RuntimeWarning, stacklevel=7)

    def _refuse_deadlock(self) -> None:
        """Raise when only this thread could end the wait.

        That is, the source waits for data, no other thread is there to add any, and no batch is on its way: the one ticket
        that is out is that of the plan which waits.
        """
        if self._waited_for() is None:
            return
        here = threading.current_thread()
        if any(t is not here and t not in package_threads for t in threading.enumerate()):
            return
        reason = self._waited_for()  # once more: a thread that has just ended may have added what the source waited for
        if reason is not None:
            raise WouldDeadlock(
                f"{reason}, and this thread, the only one that could add to it, would wait for ever: "
                "add steps before next(), or add them from another thread"
            )

    def _waited_for(self) -> str | None:
        """What the source waits for while no batch is on its way; ``None`` when it does not, or one is."""
        reason = waiting_for(self._source)
        # In this order: a plan that has just drawn what there was has ended its wait before, and the next one takes a ticket.
        return reason if reason is not None and self._pipeline_api.source_waits and self._credits.out <= 1 else None


def seconds_since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"
