"""The job queue: parts of batches that wait for a worker. In-process; what goes to the workers is sent by the crew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.pipeline.batch import Place
from async_loader.pipeline.codec import Encoded


@dataclass(slots=True, eq=False)
class Job:
    """One batch that is being made by workers.

    Attributes
    ----------
    seq : int
        Its place in the order.
    place : Place | None
        Where it is written; held until every worker assigned to it has reported or is known dead, because a stopped
        worker writes on when it is continued.
    whole : bool
        One part, collated where it is run, instead of parts that write their own rows.
    results : dict
        Part number to what its worker answered.
    over : bool
        Failed or cancelled: what still comes in is dropped.
    """

    seq: int
    rows: int
    place: Place | None
    whole: bool
    parts: int = 0
    results: dict[int, Any] = field(default_factory=dict)
    over: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """A piece of a job: rows ``start`` to ``stop``.

    Attributes
    ----------
    calls : sequence of callables | None
        For jobs; kept until done, to be sent once more by value if the worker cannot resolve them.
    index : int64 array | None
        For rows.
    payload : Encoded
        What is sent.
    """

    job: Job
    number: int
    start: int
    stop: int
    payload: Encoded
    calls: Sequence[Callable[[], Any]] | None = None
    index: npt.NDArray[np.int64] | None = None
    by_value: bool = False


class JobQueue:
    """First in, first out, from any thread; a part that was taken and not begun may be put back to the front."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()

    def put(self, parts: Sequence[Part]) -> None:
        self._parts.extend(parts)

    def put_back(self, part: Part) -> None:
        self._parts.appendleft(part)

    def take(self) -> Part | None:
        """The next part whose job is not over; ``None`` when there is none."""
        while self._parts:
            try:
                part = self._parts.popleft()
            except IndexError:
                return None
            if not part.job.over:
                return part
        return None

    def clear(self) -> None:
        self._parts.clear()

    def __len__(self) -> int:
        return len(self._parts)
