"""Where tasks come from: a source, an iterable, or the streams of workers.

Knows neither batches nor how tasks are done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

from async_loader.errors import AsyncLoaderError, Closed
from async_loader.lifecycle import Patience
from async_loader.names import describe
from async_loader.pipeline.job_queue import Job
from async_loader.source import END, AnyThread, Leasing, Source, waiting_for
from async_loader.stats import Meter


class TaskSupplier:
    """Draws the tasks of one iteration, in their order. One thread at a time calls it.

    Attributes
    ----------
    name : str
        For messages.
    ends_by_errors : bool
        There are no more tasks after an error of `draw`.
    planning_since : float | None
        When the draw that is under way began.
    """

    name = "order of the batches"
    ends_by_errors = True
    planning_since: float | None = None

    def draw(self, patience: Patience) -> Any:
        """Return the next task, or END. Waits through ``patience`` alone."""
        raise NotImplementedError

    def worker(self, seq: int, task: object) -> int | None:
        """The only worker that may do task ``seq``; ``None``: any."""
        return None

    def waiting_for(self) -> str | None:
        """Why `draw` waits, in numbers, where only this process can end the wait."""
        return None

    def stream_ended(self, worker: int) -> None:
        """This worker's stream has no more batches."""

    def hand_out(self, lease: object) -> bool:
        """See `Leasing.hand_out`."""
        return True

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""

    def release(self, timeout_s: float) -> None:
        """See `Leasing.release`."""

    def close(self) -> None:
        """Let go of what the tasks come from."""


class SourceTasks(TaskSupplier):
    """The plans of a source. `draw` may wait long, so as a rule a thread of the loader calls it.

    Attributes
    ----------
    at_once : bool
        The source is `AnyThread`, and asked for batches that need no wait first.
    """

    ends_by_errors = False

    def __init__(self, source: Source, batch_size: int) -> None:
        self.meter = Meter()
        self.source = source
        self.at_once = False
        self.name = f"data source {describe(getattr(source, 'function', source))}"
        self._batch_size = batch_size

    def draw(self, patience: Patience) -> Any:
        meter, plan, begun = self.meter, None, time.perf_counter()
        try:
            if self.at_once:
                plan = cast(AnyThread, self.source).draw_now(self._batch_size)
            if plan is None:
                self.planning_since = time.monotonic()
                plan = self.source.plan(self._batch_size, patience)
            meter.batches += 1
            return plan
        except Closed as error:
            # A source that the user closed is an error for the consumer; our own end flag ends the
            # thread.
            if patience.end is not None and patience.end.is_set():
                raise
            raise AsyncLoaderError(f"the data source is closed: {error}") from error
        finally:
            self.planning_since = None
            meter.worked(begun)

    def waiting_for(self) -> str | None:
        return waiting_for(self.source)

    def hand_out(self, lease: object) -> bool:
        return cast(Leasing, self.source).hand_out(lease)

    def settle(self, lease: object) -> None:
        cast(Leasing, self.source).settle(lease)

    def release(self, timeout_s: float) -> None:
        if isinstance(self.source, Leasing):
            self.source.release(timeout_s)


class IterableTasks(TaskSupplier):
    """Tasks from an iterable, drawn in the consumer's thread.

    Parameters
    ----------
    workers : int
        Task n goes to worker (first + n) % workers; 0: to any.
    first : int
        Number of the first task.
    """

    def __init__(self, tasks: Iterable[Any], workers: int = 0, first: int = 0) -> None:
        self._tasks: Iterator[Any] = iter(tasks)
        self._workers = workers
        self._first = first

    def draw(self, patience: Patience) -> Any:
        return next(self._tasks, END)

    def worker(self, seq: int, task: object) -> int | None:
        if not self._workers:
            return None
        return (self._first + seq) % self._workers

    def close(self) -> None:
        self._tasks = iter(())


class StreamTasks(TaskSupplier):
    """The worker whose stream is to give the next batch: one after the other, of those that have
    not ended.

    Parameters
    ----------
    turn : int
        The worker to begin with.
    under_way : list of Job | None, an attribute too
        The jobs under way, where batches are delivered out of order: then the worker with the
        fewest is next, and a fast one need not wait for its turn behind a slow one.
    """

    def __init__(self, workers: int, turn: int = 0, under_way: list[Job] | None = None) -> None:
        self._workers = workers
        self._active = set(range(workers))
        self._at = turn - 1
        self.under_way = under_way

    def draw(self, patience: Patience) -> Any:
        if not self._active:
            return END
        turns = [(self._at + n) % self._workers for n in range(1, self._workers + 1)]
        turns = [worker for worker in turns if worker in self._active]
        if self.under_way is not None:
            busy = Counter(job.worker for job in self.under_way if not job.over)
            turns.sort(key=busy.__getitem__)
        self._at = turns[0]
        return None

    def worker(self, seq: int, task: object) -> int | None:
        return self._at

    def stream_ended(self, worker: int) -> None:
        self._active.discard(worker)

    def close(self) -> None:
        self._active.clear()
