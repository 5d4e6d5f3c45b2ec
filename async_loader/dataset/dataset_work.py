"""What the workers of a DataLoader do: items of a dataset into batches. Starts nothing, decides
no order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from async_loader.dataset.array_dataset import as_index
from async_loader.dataset.bookmarks import Bookmark, has_state, upto
from async_loader.pipeline.batches import arena
from async_loader.pipeline.workers.work import NEVER, Ending, Kind, WorkContext, while_open
from async_loader.source import END


@dataclass(frozen=True, slots=True)
class EpochInfo:
    """What the workers are told when an epoch begins.

    Attributes
    ----------
    epoch : int | None
        What the dataset's ``set_epoch`` was last called with, ``None``: it has none, or was never
        told.
    resume : dict
        Worker to the bookmark of its dataset.
    """

    epoch: int | None = None
    resume: dict[int, Bookmark] | None = None

    def mark(self, worker: int) -> Bookmark | None:
        """Where this worker is to go on; ``None``: it begins."""
        return (self.resume or {}).get(worker)


def epoch_of(dataset: object) -> int | None:
    """The epoch that a dataset was told of, by ``set_epoch``, as it keeps it under the usual
    names.
    """
    if not hasattr(dataset, "set_epoch"):
        return None
    for name in ("epoch", "_epoch"):
        value = getattr(dataset, name, None)
        if value is not None and not callable(value):
            try:
                return int(value)
            except (TypeError, ValueError):
                continue
    return None


def _settle_in(dataset: Any, init: Callable[[int], Any] | None, here: WorkContext) -> EpochInfo:
    told = here.state if isinstance(here.state, EpochInfo) else EpochInfo()
    if init is not None and here.first and here.kind != "inline":
        init(here.worker)
    if told.epoch is not None and here.kind == "process" and epoch_of(dataset) != told.epoch:
        dataset.set_epoch(told.epoch)
    return told


@dataclass(eq=False)
class MapWork:
    """A task is a list of indices (or a list of such lists: shards), or one index where there are
    no batches.

    Parameters
    ----------
    dataset : object with ``__getitem__``; ``__getitems__(list)`` is used where it has one
    collate : callable
        Makes a batch of a list of items; of an item, without batches.
    batched : bool
    shards : tuple of types
        Of entries among the indices that are shards; others are indices.
    track : bool
        The state of the dataset, where it has one, is sent along with each batch.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    init: Callable[[int], Any] | None = None
    batched: bool = True
    shards: tuple[type, ...] = (list,)
    track: bool = False

    def begin(self, here: WorkContext) -> Callable[[Any], Any]:
        told = _settle_in(self.dataset, self.init, here)
        do = partial(self.do, ending=here.ending) if self.batched else self._one
        if not self.track or not has_state(self.dataset):
            return do
        mark = told.mark(here.worker)
        given = 0 if mark is None or mark.over else mark.given
        if mark is not None and mark.whole is not None:
            self.dataset.load_state_dict(mark.whole)

        def tracked(task: Any) -> Any:
            nonlocal given
            batch, given = do(task), given + 1
            found = Bookmark(given, whole=self.dataset.state_dict())
            return StreamResult(batch, here.worker, _kept(found, here))

        return tracked

    def do(self, task: Iterable[Any], ending: Ending = NEVER) -> Any:
        """The batch of these indices, or a list with one batch for each shard of them."""
        indices: Sequence[Any] = (
            task
            if isinstance(task, list)
            else task.tolist()
            if hasattr(task, "tolist")
            else list(task)
        )
        if indices and isinstance(indices[0], self.shards):
            return [self.collate(self._fetch(shard, ending)) for shard in indices]
        return self.collate(self._fetch(indices, ending))

    def _fetch(self, indices: Sequence[Any], ending: Ending) -> Any:
        dataset = self.dataset
        bulk = getattr(dataset, "__getitems__", None)
        with arena.within(None):
            if bulk is not None:
                return bulk(indices)
            return [dataset[i] for i in while_open(indices, ending)]

    def _one(self, task: Any) -> Any:
        with arena.within(None):
            item = self.dataset[task]
        return self.collate(item)


_AHEAD_FROM = 1 << 20
"""Smallest batch in bytes for which a thread that gathers the next batch ahead is faster."""


def gather_workers(item_bytes: int, batch_size: int | None, num_workers: int) -> tuple[int, Kind]:
    """Return number and kind of workers for gathering: a thread if batches are large enough."""
    ahead = num_workers and item_bytes * (batch_size or 1) >= _AHEAD_FROM
    return (1, "thread") if ahead else (0, "inline")


@dataclass(eq=False)
class GatherWork:
    """A task is an array or a list of indices, and its batch is gathered in bulk; what is no list
    of integers goes item by item.

    Parameters
    ----------
    columns : Columns
        Or what has its `gather`.
    checked : bool
        Tasks are arrays of indices that are known to be in range.
    """

    columns: Any
    by_item: MapWork
    checked: bool

    def begin(self, here: WorkContext) -> Callable[[Any], Any]:
        return self.columns.gather_checked if self.checked else self._careful

    def _careful(self, task: Any) -> Any:
        if isinstance(task, list | tuple) and task and isinstance(task[0], self.by_item.shards):
            return [self._careful(shard) for shard in task]
        index = as_index(task)
        if index is None or not len(index):
            return self.by_item.do(task)
        return self.columns.gather(index)


class StreamResult(NamedTuple):
    """A batch (END after the last one), its worker, and where the worker's dataset is after it."""

    batch: Any
    worker: int
    mark: Bookmark


def _kept(mark: Bookmark, here: WorkContext) -> Bookmark:
    """What does not change with the dataset any more. From a process it is copied by being sent."""
    return mark if here.kind == "process" else copy.deepcopy(mark)


@dataclass(eq=False)
class StreamWork:
    """Each worker iterates over its copy of the dataset, which finds its share by torch's
    ``get_worker_info``.

    Parameters
    ----------
    batch_size : int | None
        ``None``: items, not batches.
    drop : bool
        The incomplete last batch of each worker.
    track : bool
        Each stream gives `StreamResult`; else it gives batches.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    batch_size: int | None
    init: Callable[[int], Any] | None = None
    drop: bool = False
    track: bool = True

    def begin(self, here: WorkContext) -> Iterator[Any]:
        told = _settle_in(self.dataset, self.init, here)
        mark = told.mark(here.worker)
        if mark is None:
            items, mark = iter(self.dataset), Bookmark()
        elif mark.over:
            items, mark = mark.begin_anew(self.dataset), Bookmark()
        else:
            items = mark.resume(self.dataset, self.batch_size or 1)
        return _Stream(self, items, here, mark)

    def batch(self, items: Iterator[Any]) -> tuple[Any, bool]:
        """The next batch, END for none, and whether it was the last."""
        size = self.batch_size or 1
        with arena.within(None):
            begun = list(upto(items, size))
        short = len(begun) < size
        if not begun or (self.drop and short and self.batch_size is not None):
            return END, True
        return self.collate(begun[0] if self.batch_size is None else begun), short


class _Stream(Iterator[Any]):
    """Goes on after an item that could not be made, where the dataset's iterator does. If it is
    tracked, each batch has a bookmark; the last one comes without a batch, where the dataset ended
    behind the last batch.

    Attributes
    ----------
    given : int
        Batches that the stream has given, those before it was resumed included.
    """

    def __init__(
        self, work: StreamWork, items: Iterator[Any], here: WorkContext, mark: Bookmark
    ) -> None:
        self.work, self.items, self._here = work, items, here
        self.given, self.ended = mark.given, mark.ended

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        batch, self.ended = self.work.batch(self.items)
        if not self.work.track:
            if batch is END:
                raise StopIteration
            return batch
        self.given += batch is not END
        mark = Bookmark.of(self.work.dataset, self.items, self.given, ended=self.ended)
        return StreamResult(batch, self._here.worker, _kept(mark, self._here))
