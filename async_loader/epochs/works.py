"""What the workers of a DataLoader do: items of a dataset into batches. Starts nothing, decides no order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from async_loader.epochs.columns import Columns, as_index
from async_loader.pipeline import arena
from async_loader.pipeline.work import Here
from async_loader.source import END


@dataclass(frozen=True, slots=True)
class Told:
    """What the workers are told when an epoch begins.

    Attributes
    ----------
    epoch : int | None
        What the dataset's ``set_epoch`` was last called with, ``None``: it has none, or was never told.
    resume : dict
        Worker to where its stream is to go on: batches that it gave, and the state of its dataset.
    """

    epoch: int | None = None
    resume: dict[int, Any] | None = None


def epoch_of(dataset: Any) -> int | None:
    """The epoch that a dataset was told of, by ``set_epoch``, as it keeps it under the usual names."""
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


def _settle_in(dataset: Any, init: Callable[[int], Any] | None, here: Here) -> Told:
    told = here.state if isinstance(here.state, Told) else Told()
    if init is not None and here.first and here.kind != "inline":
        init(here.worker)
    if told.epoch is not None and here.kind == "processes" and epoch_of(dataset) != told.epoch:
        dataset.set_epoch(told.epoch)
    return told


class MapWork:
    """A task is a list of indices (or a list of such lists: shards), or one index where there are no batches.

    Parameters
    ----------
    dataset : object with ``__getitem__``; ``__getitems__(list)`` is used where it has one
    collate : callable
        Makes a batch of a list of items; of an item, without batches.
    batched : bool
    shards : bool
        Whether a list among the indices is a shard; else it is an index like any other.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        init: Callable[[int], Any] | None = None,
        *,
        batched: bool = True,
        shards: bool = True,
    ) -> None:
        self.dataset, self._collate, self._init, self._batched, self.shards = dataset, collate, init, batched, shards

    def begin(self, here: Here) -> Callable[[Any], Any]:
        _settle_in(self.dataset, self._init, here)
        return self.do if self._batched else self._one

    def do(self, task: Any) -> Any:
        """The batch of these indices, or a list with one batch for each shard of them."""
        indices: Sequence[Any] = task if isinstance(task, list) else task.tolist() if hasattr(task, "tolist") else list(task)
        if self.shards and indices and isinstance(indices[0], list):
            return [self._collate(self._fetch(shard)) for shard in indices]
        return self._collate(self._fetch(indices))

    def _fetch(self, indices: Sequence[Any]) -> Any:
        dataset = self.dataset
        bulk = getattr(dataset, "__getitems__", None)
        with arena.within(None):
            return bulk(indices) if bulk is not None else [dataset[i] for i in indices]

    def _one(self, task: Any) -> Any:
        with arena.within(None):
            item = self.dataset[task]
        return self._collate(item)


class StatefulMapWork:
    """As `MapWork`, for a dataset with a state: each worker's is sent along with its batches."""

    def __init__(self, work: MapWork) -> None:
        self.dataset, self._work = work.dataset, work

    def begin(self, here: Here) -> Callable[[Any], Streamed]:
        do = self._work.begin(here)
        told = here.state if isinstance(here.state, Told) else Told()
        given, state = (told.resume or {}).get(here.worker, (0, None))
        if state is not None:
            self.dataset.load_state_dict(state)

        def tracked(task: Any) -> Streamed:
            nonlocal given
            batch, given = do(task), given + 1
            return Streamed(batch, Where(here.worker, given, copy.deepcopy(self.dataset.state_dict())))

        return tracked


class GatherWork:
    """A task is an array or a list of indices, and its batch is gathered in bulk; what is no list of integers goes item by item.

    Parameters
    ----------
    checked : bool
        Tasks are arrays of indices that are known to be in range.
    """

    def __init__(self, columns: Columns, by_item: MapWork, *, checked: bool) -> None:
        self.columns, self._by_item, self._checked = columns, by_item, checked

    def begin(self, here: Here) -> Callable[[Any], Any]:
        if self._checked:
            return self._quick
        return self._careful

    def _quick(self, task: Any) -> Any:
        return self.columns.gather(task, checked=True)

    def _careful(self, task: Any) -> Any:
        if self._by_item.shards and isinstance(task, list) and task and isinstance(task[0], list):
            return [self._careful(shard) for shard in task]
        index = as_index(task)
        if index is None or not len(index):
            return self._by_item.do(task)
        return self.columns.gather(index)


@dataclass(frozen=True, slots=True)
class Where:
    """Where a stream is behind a batch.

    Attributes
    ----------
    worker : int
    given : int
        Batches of this worker so far.
    state : Any
        ``state_dict()`` of the dataset's iterator, or of the dataset, where they have one.
    """

    worker: int
    given: int
    state: Any


class Streamed(NamedTuple):
    """A batch of a stream and where it comes from."""

    batch: Any
    where: Where


class StreamWork:
    """Each worker iterates over its copy of the dataset, which finds its share by torch's ``get_worker_info``.

    Parameters
    ----------
    batch_size : int | None
        ``None``: items, not batches.
    drop : bool
        The incomplete last batch of each worker.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        batch_size: int | None,
        init: Callable[[int], Any] | None = None,
        *,
        drop: bool = False,
    ) -> None:
        self.dataset, self._collate, self._size, self._init, self._drop = dataset, collate, batch_size, init, drop

    def begin(self, here: Here) -> Iterator[Streamed]:
        told = _settle_in(self.dataset, self._init, here)
        items, given = self._resumed((told.resume or {}).get(here.worker))
        return _Stream(self, items, here, given)

    def _resumed(self, resume: Any) -> tuple[Iterator[Any], int]:
        """The items from there on: by the dataset's own state, or by passing over what was given."""
        if resume is None:
            return iter(self.dataset), 0
        given, state = resume
        if state is not None and hasattr(self.dataset, "load_state_dict"):
            self.dataset.load_state_dict(state)
            return iter(self.dataset), given
        items = iter(self.dataset)
        if state is not None and hasattr(items, "load_state_dict"):
            items.load_state_dict(state)
            return items, given
        return _passed_over(items, given * (self._size or 1)), given

    def batch(self, items: Iterator[Any]) -> tuple[Any, bool]:
        """The next batch, END for none, and whether it was the last."""
        if self._size is None:
            with arena.within(None):
                item = next(items, END)
            return (END, True) if item is END else (self._collate(item), False)
        with arena.within(None):
            batch = list(itertools.islice(items, self._size))
        short = len(batch) < self._size
        if not batch or (self._drop and short):
            return END, True
        return self._collate(batch), short


class _Stream(Iterator[Streamed]):
    """Goes on after an item that could not be made, where the dataset's iterator does."""

    def __init__(self, work: StreamWork, items: Iterator[Any], here: Here, given: int) -> None:
        self._work, self._items, self._here, self._given = work, items, here, given
        self._ended = False

    def __next__(self) -> Streamed:
        batch, self._ended = (END, True) if self._ended else self._work.batch(self._items)
        if batch is END:
            raise StopIteration
        self._given += 1
        state = _state_of(self._items, self._work.dataset)
        if self._here.kind != "processes":  # elsewhere it is copied by being sent
            state = copy.deepcopy(state)
        return Streamed(batch, Where(self._here.worker, self._given, state))


def _state_of(items: Any, dataset: Any) -> Any:
    for one in (items, dataset):
        if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
            return one.state_dict()
    return None


def _passed_over(items: Iterator[Any], count: int) -> Iterator[Any]:
    next(itertools.islice(items, count, count), None)
    return items
