"""The job queue: chunks of batches that wait for a worker.

In this process; the pool sends them to its workers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from async_loader.batch_layout import BatchLayout
from async_loader.pipeline import codec
from async_loader.pipeline.batch import Outcome
from async_loader.pipeline.codec import Encoded
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.shm.batch_buffer import BatchBuffer

NO_PAYLOAD = codec.encode(None)


@dataclass(slots=True, eq=False)
class Job:
    """One batch that is being made by workers.

    Attributes
    ----------
    seq : int
        Its number in the iteration.
    buffer : BatchBuffer | None
        The slot in which it is written; held until every worker assigned to it has reported or is
        known dead, because a stopped worker writes on when it is continued.
    whole : bool
        One chunk, collated where it is run, instead of chunks that write their own rows.
    results : dict
        Part number to what its worker answered.
    over : bool
        Failed or cancelled: what still comes in is dropped.
    ready : TrainQueue
        Where its outcome goes.
    worker : int | None
        The only worker that may do it.
    """

    seq: int
    rows: int
    buffer: BatchBuffer | None
    whole: bool
    ready: TrainQueue
    layout: BatchLayout | None = None
    chunks: int = 0
    results: dict[int, Any] = field(default_factory=dict)
    over: bool = False
    worker: int | None = None

    def finish(self, outcome: Outcome) -> None:
        """Pass its outcome on, unless it is over."""
        if not self.over:
            self.over = True
            self.results.clear()
            self.ready.put(self.seq, outcome)


@dataclass(slots=True, eq=False)
class IterationSpec:
    """One iteration, as workers are told of it before its first task.

    Attributes
    ----------
    number, seed : int
    state : Any
        For `Work.begin`.
    live : set of int
        Numbers of the loader's iterations that are not over; shared by all of them.
    stream : bool
        Its tasks are "the next from worker k".
    first : int
        Added to the number of a task for its seed.
    payload : Encoded
        The state, on its way to processes.
    revision : int
        How often the state has changed: workers that were told an earlier one are told again.
    lost : dict
        Workers whose streams ended with them, and the error that says so until it was raised.
    """

    number: int
    seed: int
    state: Any
    live: set[int]
    stream: bool = False
    first: int = 0
    payload: Encoded = field(default_factory=lambda: NO_PAYLOAD)
    revision: int = 0
    lost: dict[int, BaseException | None] = field(default_factory=dict)

    def encode_state(self, state: object) -> None:
        """Set the state, for worker processes."""
        self.state, self.payload = state, codec.encode(state)
        self.revision += 1


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a job: rows ``start`` to ``stop``.

    Attributes
    ----------
    spec : IterationSpec
    kind : str
        See `TaskRecord`.
    payload : Encoded
        What is sent to a process.
    task : Any
        What is done, in a thread; the calls of jobs.
    worker : int | None
        The only worker that may do it; ``None``: any.
    """

    job: Job
    spec: IterationSpec
    kind: str
    number: int
    start: int
    stop: int
    payload: Encoded
    task: Any = None
    worker: int | None = None


class JobQueue(deque[Chunk]):
    """First in, first out. A chunk that was taken and not begun goes back to the front."""

    def take(self, worker: int) -> Chunk | None:
        """The next chunk for this worker whose job is not over. Under the pool's lock."""
        while self and self[0].job.over:
            self.popleft()
        for place, chunk in enumerate(self):
            if chunk.worker in (None, worker) and not chunk.job.over:
                del self[place]
                return chunk
        return None
