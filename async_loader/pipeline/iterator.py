"""What stands behind ``next(loader)``: waits for an outcome, turns it into tensors, and gives the ticket back."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from typing import Any, Literal, Protocol, cast

from async_loader.errors import Timeout, WouldDeadlock
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Failure, Loose, Nudge, Slotted
from async_loader.pipeline.delivery import Delivery
from async_loader.pipeline.tickets import Tickets
from async_loader.source import END, Leasing, Source
from async_loader.stats import Meter

OnError = Literal["raise", "skip", "fatal"]

_WARN_AFTER_S = 10.0
_MAX_SKIPS = 100
"""Failures in a row that ``on_error="skip"`` passes over; more than that is not an odd sample but a broken source."""

_DROPPED = object()
"""In place of a batch that is not this consumer's any more."""

own_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of loaders, which never add data to a source."""


class Queue(Protocol):
    """The consumer's end of the train queue or the cuda queue."""

    def pop(self) -> Any: ...

    def get(self, deadline: Deadline) -> Any: ...


class Overseer(Protocol):
    """What the iterator asks of the pipeline around it."""

    def check(self) -> None:
        """Raise when no more batches can come."""

    def diagnosis(self) -> str:
        """Whom everyone waits for, in words."""

    def break_(self, error: BaseException) -> None: ...

    def receive(self, item: Any) -> Any:
        """Finish what came through the cuda queue, in the consumer's thread."""


class Iterator:
    """One consumer at a time.

    Parameters
    ----------
    timeout_s : float | None
        For each `next`. Without one it warns once when nothing came for ten seconds.
    """

    def __init__(
        self,
        queue: Queue,
        tickets: Tickets,
        source: Source,
        overseer: Overseer,
        delivery: Delivery,
        on_error: OnError,
        timeout_s: float | None,
    ) -> None:
        self.meter = Meter()
        self.skipped = 0
        self._queue = queue
        self._tickets = tickets
        self._source = source
        self._overseer = overseer
        self._delivery = delivery
        self._on_error = on_error
        self._timeout_s = timeout_s
        self._warned = False
        self._last: object = None  # the lease of the batch that was handed out last, until that is used
        self._pid = os.getpid()

    def next(self) -> Any:
        """The next batch.

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
            # As a rule a batch is ready, and nothing else need be looked at; caches are cold here, so every call counts.
            if self._last is not None:
                self.settle()
            item = self._queue.pop()
            if item is None or os.getpid() != self._pid:
                return self._next(Deadline(self._timeout_s))
            batch = self._finish(item)
            return self._next(Deadline(self._timeout_s)) if batch is _DROPPED else batch
        finally:
            meter.work()

    def settle(self) -> None:
        """The batch that was handed out last is used, where its source wants to know that. Twice does no harm."""
        if self._last is not None:
            cast(Leasing, self._source).settle(self._last)
            self._last = None

    def _finish(self, item: Any) -> Any:
        self.meter.batches += 1
        try:
            host = isinstance(item, Slotted | Loose)
            batch = self._delivery.hand_out(item) if host else self._overseer.receive(item)
            return batch if item.lease is None else self._claimed(item.lease, batch)
        finally:
            self._tickets.give()  # also when Ctrl-C ends the delivery: a lost ticket is a batch less ahead, for good

    def _claimed(self, lease: object, batch: Any) -> Any:
        """The batch, unless its source delivers it elsewhere by now. Last of all: what Ctrl-C ends before goes back unseen."""
        if not cast(Leasing, self._source).hand_out(lease):
            return _DROPPED
        self._last = lease
        return batch

    def _next(self, deadline: Deadline) -> Any:
        failed = 0
        while failed < _MAX_SKIPS:
            item = self._wait(deadline)
            if item is END:
                raise StopIteration
            if not isinstance(item, Failure):
                batch = self._finish(item)
                if batch is _DROPPED:
                    continue
                return batch
            failed += 1
            self._tickets.give()
            if self._on_error != "skip":
                break
            self.skipped += 1
        else:
            item.error.add_note(f"{_MAX_SKIPS} batches in a row have failed; the others were skipped")
        if self._on_error == "fatal":
            self._overseer.break_(item.error)
        raise item.error

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, deadline: Deadline) -> Any:
        part = self._first_part(deadline)
        while True:
            self._overseer.check()
            self._refuse_deadlock()
            try:
                item = self._queue.get(part)
            except Timeout:
                self._give_up_or_warn(deadline)
                part = deadline
                continue
            if not isinstance(item, Nudge):
                return item

    def _first_part(self, deadline: Deadline) -> Deadline:
        left = deadline.left()
        return Deadline(_WARN_AFTER_S) if left is None and not self._warned else deadline

    def _give_up_or_warn(self, deadline: Deadline) -> None:
        self._overseer.check()
        if deadline.expired:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self._overseer.diagnosis()}")
        self._warned = True
        text = f"no batch for {_WARN_AFTER_S:g} s: {self._overseer.diagnosis()}. next() goes on waiting; "
        text += "a loader with timeout= raises Timeout instead"
        warnings.warn(text, RuntimeWarning, stacklevel=6)

    def _refuse_deadlock(self) -> None:
        """Raise when the source waits for data that only this very thread could add: nobody else is there to do it."""
        reason = self._source.waiting_for()
        if reason is None:
            return
        here = threading.current_thread()
        others = [t for t in threading.enumerate() if t is not here and t not in own_threads]
        if not others:
            raise WouldDeadlock(
                f"{reason}, and this thread, the only one that could add to it, would wait for ever: "
                "add steps before next(), or add them from another thread"
            )


def seconds_since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"
