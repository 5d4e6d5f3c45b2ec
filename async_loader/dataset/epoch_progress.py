"""The course of an epoch: which of its tasks are over, and where each worker's dataset is. Makes no
batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from async_loader.dataset.bookmarks import Bookmark
from async_loader.dataset.dataset_work import StreamPosition
from async_loader.pipeline.workers.work import NumberedTask


class EpochProgress:
    """What a state of a loader says of one epoch.

    Parameters
    ----------
    start : mapping
        What `state` gave, of the epoch that goes on here; empty: it begins.

    Attributes
    ----------
    upto : int
        Tasks, from the first on, that are over.
    beyond : list of int
        Numbers of later tasks that are over too: where batches come as they are ready.
    marks : dict
        Worker to where its dataset is.
    turn : int
        The worker whose stream gives the next batch.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.upto: int = start.get("yielded", 0)
        self.beyond: list[int] = sorted(start.get("beyond", ()))
        self.turn: int = start.get("turn", 0)
        streams = start.get("streams") or {}
        self.marks = {int(worker): Bookmark.from_state(mark) for worker, mark in streams.items()}
        self._first: int = self.upto
        self._skipped = tuple(self.beyond)

    @property
    def over(self) -> int:
        """How many tasks are over."""
        return self.upto + len(self.beyond)

    def left(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """Of ``tasks``, which begin with task `upto`, those that are not over."""
        if not self._skipped:
            return tasks
        skipped = frozenset(self._skipped)
        return (task for number, task in enumerate(tasks, self._first) if number not in skipped)

    def numbered(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The tasks of `left`, with their own numbers where their places in it say others: the
        random numbers of a batch follow from its number.
        """
        if not self._skipped:
            return tasks
        return (NumberedTask(self._number(position), task) for position, task in enumerate(tasks))

    def passed(self, count: int, beyond: tuple[int, ...]) -> int:
        """Tasks of `left` are over: the first ``count``, and ``beyond``. How many more than before
        are so from the first on.
        """
        before = self.upto
        self.upto = self._number(count)
        if beyond or self.beyond:
            later = [number for number in self._skipped if number > self.upto]
            self.beyond = sorted((*map(self._number, beyond), *later))
        return self.upto - before

    def _number(self, position: int) -> int:
        """Of the task at this position in `left`."""
        number = self._first + position
        for skipped in self._skipped:
            if skipped > number:
                break
            number += 1
        return number

    def note(self, where: StreamPosition) -> None:
        """A worker said where it is."""
        self.marks[where.worker] = where.mark

    def state(self) -> dict[str, Any]:
        """What `EpochProgress` goes on from; nothing in it changes any more."""
        found: dict[str, Any] = {"yielded": self.upto}
        if self.beyond:
            found["beyond"] = list(self.beyond)
        if self.marks:
            marks = {str(n): mark.to_state() for n, mark in sorted(self.marks.items())}
            found["streams"] = copy.deepcopy(marks)
            found["turn"] = self.turn
        return found
