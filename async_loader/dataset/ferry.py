"""Batches of an iteration on their way to a device, or to page-locked memory: a streamer thread takes them, a few ahead.
Makes no batch.

Iteration ──▶ _Landing (tickets) ──▶ Streamer ──▶ CudaQueue ──▶ Ferry ──▶ the consumer
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from async_loader import process_hooks, tensors, tree
from async_loader.errors import Broken, Closed, Timeout
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.credits import Credits
from async_loader.pipeline.device.backend import DeviceBackend, block_views
from async_loader.pipeline.device.cuda_queue import CudaQueue
from async_loader.pipeline.device.pinned_memory import PinnedMemory
from async_loader.pipeline.device.streamer import Streamer
from async_loader.pipeline.iteration import NOTHING, Iteration
from async_loader.pipeline.iterator import note_own_threads
from async_loader.pipeline.workers.failures import guarded
from async_loader.source import END
from async_loader.stats import StageStats

AHEAD = 2
"""Batches on the device, or on their way there, beyond the one that the consumer has."""

_CLOSE_TIMEOUT_S = 5.0

_Passed = tuple[int, tuple[int, ...]]
"""``passed`` and ``beyond`` of an iteration behind one of its batches."""


class Ferry(Iterator[Any]):
    """The batches of an iteration, on a device. Arrays and CPU tensors in dicts, lists, tuples and namedtuples are copied
    there; everything else stays what it is.

    Parameters
    ----------
    iteration : Iteration
        Without a time limit of its own: nobody waits for the batches that are made ahead.
    backend : DeviceBackend | callable
        A callable is called with each batch in the streamer's thread, and what it returns is the batch.
    timeout_s : float | None
        For each `next`.
    pages : Pages | None
        Of the loader, whose iterations may be under way at the same time.

    Attributes
    ----------
    exhausted : bool
    passed : int
    beyond : tuple of int
        Of the iteration's tasks: see there. Those of batches that are still on their way do not count.
    """

    def __init__(
        self,
        iteration: Iteration,
        backend: DeviceBackend | Callable[[Any], Any],
        timeout_s: float | None = None,
        pages: PinnedMemory | None = None,
    ) -> None:
        self._crossing = _Crossing(iteration, backend, timeout_s, pages)
        process_hooks.add(self._crossing)
        self._crossing.start()

    @property
    def held(self) -> Any:
        """See NOTE [held] in `async_loader.pipeline.iteration`."""
        return self._crossing.held

    @property
    def exhausted(self) -> bool:
        return self._crossing.iteration.exhausted

    @property
    def passed(self) -> int:
        return self._crossing.passed[0]

    @property
    def beyond(self) -> tuple[int, ...]:
        return self._crossing.passed[1]

    def stage(self) -> StageStats:
        """What the streamer has done."""
        return self._crossing.stage()

    def openings(self) -> list[Any]:
        """See `async_loader.pipeline.iteration.Iteration.openings`."""
        return self._crossing.openings()

    def __next__(self) -> Any:
        """The next batch. Raises what the iteration does, and Broken when the device fails."""
        crossing = self._crossing
        crossing.hold()
        try:
            return crossing.held
        finally:
            crossing.held = NOTHING

    def hold(self) -> None:
        """See to it that ``held`` is the next batch. Raises as `__next__` does."""
        self._crossing.hold()

    def release(self) -> None:
        """What was held has been handed on. Safe to repeat."""
        self._crossing.held = NOTHING

    def close(self) -> None:
        """Cancel what is under way; idempotent."""
        self._crossing.close(_CLOSE_TIMEOUT_S)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        crossing = getattr(self, "_crossing", None)
        if crossing is not None and not finalizing():  # then modules are being taken apart, and all ends anyway
            crossing.abandon()


class _Landing:
    """The streamer's end: one batch for each ticket that the consumer gave."""

    def __init__(self, iteration: Iteration, prepare: Callable[[Any], Any]) -> None:
        self.iteration = iteration
        self._prepare = prepare
        self.credits = Credits(AHEAD)
        self.outcomes = 0
        self.passed: deque[tuple[int, _Passed]] = deque()
        """Of each outcome its number, and what the iteration had passed behind it."""
        self.streamer: Streamer | None = None

    def get(self, deadline: Deadline) -> Any:
        self.credits.take(deadline)
        ring = self.iteration.ring
        if ring is not None and self.streamer is not None:
            self.streamer.meet(ring)
        try:
            return Batch(tree=(self._prepare(next(self.iteration)),))
        except StopIteration:
            return END
        except BaseException as error:  # data for the consumer: it is raised there
            return Failure(guarded(error))
        finally:
            self.outcomes += 1
            self.passed.append((self.outcomes, (self.iteration.passed, self.iteration.beyond)))


class _Crossing:
    """Threads hold this, never the ferry, so that a dropped one can be noticed."""

    def __init__(
        self,
        iteration: Iteration,
        backend: DeviceBackend | Callable[[Any], Any],
        timeout_s: float | None,
        pages: PinnedMemory | None,
    ) -> None:
        self.iteration = iteration
        self.passed: _Passed = (0, ())
        self.held: Any = NOTHING
        self._owed = False  # what is held is still in the queue, and its ticket is still out
        self._outcomes = 0
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        prepare: Callable[[Any], Any] = _as_it_is
        if not isinstance(backend, DeviceBackend):
            prepare, backend = _Prepared(backend), _Host()
        self._landing = _Landing(iteration, prepare)
        self._queue = CudaQueue()
        self._streamer = self._landing.streamer = Streamer(self._landing, self._queue, backend, pages=pages)

    def start(self) -> None:
        with SignalsDeferred():  # a thread whose start was cut is not known
            self._streamer.start()
        note_own_threads()

    def hold(self) -> None:
        """In steps that can be repeated: see NOTE [handed out once] in `async_loader.pipeline.iterator`."""
        if os.getpid() != self._pid:  # the streamer's thread is in that process alone
            raise Broken(f"this iteration belongs to process {self._pid}: begin one in each process that needs batches")
        if self.held is NOTHING:
            self._hold()
        if self._owed:
            self._settle()
        if isinstance(self.held, Failure):
            try:
                raise self.held.error
            finally:
                self.held = NOTHING

    def _hold(self) -> None:
        try:
            item = self._queue.front()
            if item is None:
                item = self._queue.wait(Deadline(self._timeout_s))
        except Closed:
            raise StopIteration from None
        except Timeout:
            raise Timeout(f"no batch within {self._timeout_s:g} s: {self.iteration.waiting_for()}") from None
        if item is END:
            raise StopIteration
        held = item
        if not isinstance(item, Failure):
            try:
                (held,) = self._streamer.receive(item)
            except Exception as error:  # the next call goes on with the next batch
                held = Failure(error)
            if type(held) is _Opaque:
                held = held.batch
        self.held, self._owed = held, True

    def _settle(self) -> None:
        """What is held is no longer the queue's, and there may be another in its place."""
        self._queue.drop()
        given, passed = self._outcomes + 1, self._landing.passed
        while passed[0][0] < given:
            passed.popleft()
        self._landing.credits.give(given)
        self._outcomes, self._owed, self.passed = given, False, passed[0][1]

    def stage(self) -> StageStats:
        return self._streamer.meter.snapshot(self._queue.depth)

    def openings(self) -> list[Any]:
        return self.iteration.openings(self._timeout_s)

    def abandon(self) -> None:
        """Tell everyone to end, wait for nobody. In a forked child there is nobody, and who held the locks is not there."""
        if os.getpid() != self._pid:
            return
        self._landing.credits.close()
        self._queue.close()
        self.iteration.close()

    def close(self, timeout_s: float) -> bool:
        if os.getpid() != self._pid:
            return True
        self.abandon()
        return self._streamer.join(timeout_s)

    def retire_leased(self) -> None:
        """The slots are the pool's, which is told itself."""

    def after_fork_in_child(self) -> None:
        """Nothing here is open in a child."""


@dataclass(frozen=True, slots=True)
class _Opaque:
    """A batch that the streamer is to leave as it is."""

    batch: Any


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True, slots=True)
class _Prepared:
    prepare: Callable[[Any], Any]

    def __call__(self, batch: Any) -> _Opaque:
        return _Opaque(self.prepare(batch))


class _Host:
    """No device: there is nothing to copy to, and nothing to wait for. See `DeviceBackend`."""

    def open(self) -> None: ...

    def register(self, memory: Any, unit: int) -> bool:
        return False

    def unregister(self, memory: Any) -> None: ...

    def upload(self, root: Any, nbytes: int) -> Any:
        return root[:nbytes].copy()

    def upload_leaf(self, tensor: Any) -> Any:
        return tensor

    def arrays(self, block: Any, regions: Any) -> list[Any]:
        return block_views(tensors.to_tensor(block), regions)

    def record(self) -> Any:
        return self  # what is copied nowhere has arrived

    def done(self, event: Any) -> bool:
        return True

    def synchronize(self, event: Any) -> None: ...

    def wait(self, event: Any) -> None: ...

    def protect(self, block: Any) -> None: ...


def moved(batch: Any, device: Any) -> Any:
    """The batch with its tensors on a device, copied in this thread."""
    import torch

    def move(value: Any) -> Any:
        value = tensors.as_tensor(value)
        return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    return tree.transform(batch, move)
