"""The slots of the loader, as a worker process has them mapped. Allocates none."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.batch_layout import BatchLayout
from async_loader.pipeline.batches.arena import Arena
from async_loader.shm.segment import Segment

KNOWN_RINGS = 3
"""Rings and layouts that a worker remembers; its handle counts along and sends them again when they
were forgotten.
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
    ring, slot, layout : int
        Numbers of what was sent before, -1 for none.
    iteration : int
    """

    number: int
    kind: str
    seq: int
    chunk: int
    start: int
    stop: int
    whole: bool
    ring: int
    slot: int
    layout: int
    iteration: int


class WorkerSlots:
    """Rings and layouts by the numbers that the loader's process gives them.

    Attributes
    ----------
    arena : Arena | None
        All of the slot of the task at work, where that is its only chunk.
    """

    def __init__(self) -> None:
        self.arena: Arena | None = None
        self._rings: OrderedDict[int, tuple[Segment, int]] = OrderedDict()
        self._layouts: OrderedDict[int, BatchLayout] = OrderedDict()
        self._views: dict[tuple[int, int, int], list[Any]] = {}

    def add_ring(self, number: int, segment: Segment, slot_bytes: int) -> None:
        self._rings[number] = (segment, slot_bytes)
        self._forget(self._rings, 0)

    def add_layout(self, number: int, layout: BatchLayout) -> None:
        self._layouts[number] = layout
        self._forget(self._layouts, 2)

    def _forget(self, known: OrderedDict[int, Any], place: int) -> None:
        while len(known) > KNOWN_RINGS:
            forgotten, _ = known.popitem(last=False)
            self._views = {
                key: views for key, views in self._views.items() if key[place] != forgotten
            }

    def root(self, task: TaskRecord) -> npt.NDArray[np.uint8]:
        """The bytes of the task's slot."""
        segment, slot_bytes = self._rings[task.ring]
        return segment.bytes(task.slot * slot_bytes, slot_bytes)

    def layout(self, task: TaskRecord) -> BatchLayout:
        return self._layouts[task.layout]

    def views(self, task: TaskRecord) -> list[Any]:
        """The arrays of the task's slot, all rows of them. They are made once for each slot."""
        key = (task.ring, task.slot, task.layout)
        views = self._views.get(key)
        if views is None:
            views = self._views[key] = self.layout(task).views(self.root(task))
        return views
