"""The slots of the loader, as a worker process has them mapped. Allocates none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.pipeline.batches.arena import Arena
from async_loader.shm.segment import Segment

KNOWN_PLACES = 3
"""Places that a worker remembers; its handle counts along and sends them again when they were
forgotten.
"""


class TaskRecord(NamedTuple):
    """One chunk of a task, as it is sent; what is to be done follows as the payload.

    Attributes
    ----------
    number : int
        Of the chunk, for the answer.
    kind : str
        "jobs" or "rows" of a loader's batch; "work" or "stream" for what a `Work` of a pool does.
    seq : int
        Of the task in its iteration.
    chunk, start, stop : int
        Which chunk of the task it is, and its rows.
    whole : bool
        The only chunk: it may use all of the slot.
    place, slot : int
        A `Place` that was sent before, and the slot in it; -1 for none.
    iteration : int
    """

    number: int
    kind: str
    seq: int
    chunk: int
    start: int
    stop: int
    whole: bool
    place: int
    slot: int
    iteration: int


@dataclass(slots=True)
class Place:
    """A ring of slots, and how batches lie in them; without a layout that is not known."""

    segment: Segment
    slot_bytes: int
    layout: BatchLayout | None
    views: dict[int, list[Any]] = field(default_factory=dict)

    def root(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot."""
        return self.segment.bytes(slot * self.slot_bytes, self.slot_bytes)


class WorkerSlots:
    """Places by the numbers that the loader's process gives them.

    Attributes
    ----------
    arena : Arena | None
        All of the slot of the task at work, where that is its only chunk.
    layout : BatchLayout | None
        Of the rows that the task at work writes; ``None``: it answers with what it made.
    """

    def __init__(self) -> None:
        self.arena: Arena | None = None
        self.layout: BatchLayout | None = None
        self._places: dict[int, Place] = {}

    def add(self, number: int, place: Place) -> None:
        self._places[number] = place
        if len(self._places) > KNOWN_PLACES:
            del self._places[next(iter(self._places))]

    def begin(self, task: TaskRecord) -> None:
        """This task is at work from now on."""
        place = self._places.get(task.place)
        self.layout = None if place is None else place.layout
        self.arena = Arena(place.root(task.slot)) if task.whole and place is not None else None

    def rows(self, task: TaskRecord) -> list[Any]:
        """The rows of the chunk at work, in the arrays of its slot, which are made once."""
        place = self._places[task.place]
        views = place.views.get(task.slot)
        if views is None:
            assert place.layout is not None
            views = place.views[task.slot] = place.layout.views(place.root(task.slot))
        return [view[task.start : task.stop] for view in views]
