"""gluon's DataLoader: its signature, argument checks, collation and quirks. The pool does the work.

Differences from the original: workers survive errors, a worker that dies is reported at once and
replaced, a timeout does not invalidate the iterator, bad arguments are refused by the constructor,
and iterators without workers have the same methods as those with them.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.multiprocessing import queue

from async_loader.compat.gluon.data.batchify import (
    Stack,
    default_batchify_fn,
    default_mp_batchify_fn,
)
from async_loader.compat.gluon.data.dataset import gather_of
from async_loader.compat.gluon.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    require,
)
from async_loader.dataset.array_dataset import Columns, NoColumns
from async_loader.dataset.dataset_work import GatherWork, MapWork, gather_workers
from async_loader.dataset.epoch import can_pin, pinned
from async_loader.errors import ConfigError, Timeout
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.workers.work import Kind
from async_loader.public_names import set_public_names

__all__ = [
    "ConnectionWrapper",
    "DataLoader",
    "DataLoaderV1",
    "LoaderTimeout",
    "Queue",
    "SimpleQueue",
    "default_batchify_fn",
    "default_mp_batchify_fn",
]
set_public_names(globals())

Collate = Callable[[list[Any]], Any]


class LoaderTimeout(Timeout, multiprocessing.TimeoutError):
    """No batch arrived within ``timeout``; the next call waits for the same batch.

    Also multiprocessing's TimeoutError.
    """


class DataLoader:
    """Batches of a dataset, epoch after epoch.

    Parameters
    ----------
    dataset : object with ``__len__`` and ``__getitem__``
        A `Dataset`, an array, a list.
    batch_size : int
        Required unless ``batch_sampler`` is given.
    shuffle : bool
        Shuffle in each epoch with numpy's global generator.
    sampler : iterable of indices with a length
        In place of ``shuffle``.
    last_batch : {'keep', 'discard', 'rollover'}
        Handling of an incomplete batch; kept by default. Rolled over, its samples start the next
        epoch.
    batch_sampler : iterable of lists of indices with a length
        In place of the four arguments before it.
    batchify_fn : callable, optional
        Makes a batch of a list of samples; by default `batchify.Stack`: a list of arrays, one per
        field.
    num_workers : int
        0 or less: batches are made on request. Workers are started here and live as long as the
        loader. Batches made in bulk need none.
    pin_memory : bool
        Copy into page-locked memory. Tuples become lists.
    pin_device_id : int
        Not used: page-locked memory belongs to no device.
    prefetch : int, optional
        Batches in progress, in total; by default two per worker, at least one.
    thread_pool : bool
        Workers are threads, which share the dataset.
    timeout : float
        Seconds that one batch may take, with workers.
    try_nopython : bool, optional
        Make batches in bulk, without Python code for each item: if possible (None), never (False),
        or raise if impossible (True; with workers only).

    Raises
    ------
    ConfigError
        A ValueError: for arguments that exclude each other or cannot work.
    AssertionError
        If ``timeout`` is not positive.
    RuntimeError
        If ``try_nopython`` is True but impossible; gives the reason.

    Notes
    -----
    Random numbers in workers (random, numpy, torch) depend on the state of numpy's generator when
    the loader is made, and on the numbers of the epoch and the batch.

    An iterator raises the exception of the dataset or ``batchify_fn`` and continues with the next
    batch; WorkerDied for a dead worker; `LoaderTimeout`. Any number of iterators share the workers;
    each keeps the loader alive.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float | None = 120,
        try_nopython: bool | None = None,
    ) -> None:
        require(timeout is None or timeout > 0, f"timeout is {timeout}: it is more than 0 s")
        self._dataset = dataset
        self._batch_sampler = sampled(
            dataset, batch_size, shuffle, sampler, last_batch, batch_sampler
        )
        self._num_workers = max(0, num_workers)
        self._prefetch = max(0, 2 * self._num_workers if prefetch is None else int(prefetch))
        self._pin_memory, self._pin_device_id = pin_memory, pin_device_id
        self._thread_pool, self._timeout = thread_pool, timeout
        self._batchify_fn = batchify_fn or self._batchify
        self._pins = pin_memory and can_pin()
        gather = self._gather(self._batchify_fn, try_nopython)
        workers = self._num_workers
        kind: Kind = "thread" if thread_pool else "process"
        work: Any = MapWork(dataset, self._batchify_fn, shards=self._shards)
        if gather is not None:
            # gathering is faster than sending, and a thread gathers large ones ahead
            workers, kind = gather_workers(gather.item_bytes, batch_size, workers)
            checked = sampler is None and batch_sampler is None
            work = GatherWork(gather, work, checked=checked)
        self._engine = Engine(work, workers, kind=kind, prefetch=self._prefetch, seed=_seed())
        self._engine.start()

    _shards: tuple[type, ...] = ()
    """Types of entries of a batch that are shards."""
    _batchify: Collate = Stack()
    """The batchify function by default."""

    def _tasks(self) -> Iterator[Any]:
        sampler = self._batch_sampler
        if type(sampler) is BatchSampler and sampler.in_bulk:
            return sampler.blocks()
        return iter(sampler)

    def _gather(self, batchify_fn: Collate, wanted: bool | None) -> Columns | None:
        """Return the bulk path if it is allowed and possible;
        RuntimeError if it is demanded and impossible.
        """
        if wanted is False:
            return None
        fn = batchify_fn
        try:
            gather = gather_of(self._dataset)
            if fn is default_batchify_fn or type(fn) is Stack:
                return gather
            name = getattr(fn, "__name__", None) or type(fn).__name__
            reason = f"batchify_fn: {name} is Python, only Stack and the default are done in bulk"
        except NoColumns as error:
            reason = f"dataset: {error}"
        if wanted and self._num_workers:
            raise RuntimeError(
                f"try_nopython is True, and impossible ({reason}): change that, or leave "
                "try_nopython at None"
            )
        return None

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self)

    def __len__(self) -> int:
        return len(self._batch_sampler)


class DataLoaderV1(DataLoader):
    """The loader with the older signature, up to ``pin_device_id``;
    its iterators never time out.

    Parameters
    ----------
    *args, **kwargs
        As `DataLoader`; ``batchify_fn`` is by default `default_batchify_fn`.
    """

    _batchify: Collate = staticmethod(default_batchify_fn)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout = None


class BatchIterator(Iterator[Any]):
    """One epoch. Keeps its loader alive, so that ``iter(DataLoader(...))`` works."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches = loader._engine.iterate(loader._tasks(), timeout_s=loader._timeout)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except Timeout as late:
            raise LoaderTimeout(
                f"{late}: raise timeout, or give the loader more workers or less prefetch"
            ) from None
        if self._loader._pins:
            batch = pinned(batch)
            return list(batch) if isinstance(batch, tuple) else batch
        return batch

    def next(self) -> Any:
        """Same as ``next(iterator)``."""
        return self.__next__()

    def __len__(self) -> int:
        return len(self._loader)


def sampled(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool,
    sampler: Any,
    last_batch: str | None,
    batch_sampler: Any,
) -> Any:
    """Return the batch sampler that gluon's arguments describe.

    Raises
    ------
    ConfigError
        If they exclude each other.
    """
    if batch_sampler is not None:
        if batch_size is not None or shuffle or sampler is not None or last_batch is not None:
            raise ConfigError(
                "batch_sampler decides on batch_size, shuffle, sampler and last_batch: give it, or "
                "those"
            )
        return batch_sampler
    if batch_size is None:
        raise ConfigError(
            "neither batch_size nor batch_sampler is given: one of them says what a batch is"
        )
    if sampler is not None and shuffle:
        raise ConfigError("sampler decides on the order: give it, or shuffle")
    if sampler is None:
        sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
    return BatchSampler(sampler, batch_size, last_batch or "keep")


def _seed() -> int:
    """Return the seed for workers: derived from the state of numpy's global generator,
    without drawing from it.
    """
    state = pickle.dumps(np.random.get_state(legacy=False), protocol=5)
    return int.from_bytes(hashlib.blake2b(state, digest_size=7).digest())


# -- queues and connections that share tensors; not used by the loader -----------------------------


class ConnectionWrapper(queue.ConnectionWrapper):
    """A connection whose ``send`` shares tensors; other methods are unchanged.

    Parameters
    ----------
    conn : multiprocessing.connection.Connection
    """


class Queue(queue.Queue):
    """``multiprocessing.Queue`` for tensors.

    Parameters
    ----------
    maxsize : int
        0 for no limit.
    ctx : multiprocessing context, optional
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        context = ctx or multiprocessing.get_context()
        super().__init__(maxsize, ctx=context)  # type: ignore[no-untyped-call]


class SimpleQueue(queue.SimpleQueue):
    """``multiprocessing.SimpleQueue`` for tensors.

    Parameters
    ----------
    ctx : multiprocessing context, optional
    """

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__(ctx=ctx or multiprocessing.get_context())
