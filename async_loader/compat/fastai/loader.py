"""fastai's DataLoader: its signature, callbacks and order of calls.

Worker processes are the pipeline's.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, ClassVar

import torch
from torch.utils.data import IterableDataset

from async_loader import tree
from async_loader.compat.fastai import parts
from async_loader.compat.fastai.batch_maker import BatchMaker, retain_types
from async_loader.compat.fastai.parts import (
    Endless,
    FakeLoader,
    WorkerStreams,
    batches_of,
)
from async_loader.dataset.epoch import pinned
from async_loader.shm.hugepages import keep_freed_memory


class DataLoader(BatchMaker):
    """Batches of a dataset, with a callback at every step of their making.

    In the learner's process, for each epoch: randomize, before_iter, get_idxs (shuffle_fn). Then in
    each worker, or here without workers: wif (workers only), sample, create_batches; per item
    create_item, after_item; per batch before_batch, create_batch, retain. Back in the learner's
    process: the copy to the device, after_batch, and at the natural end after_iter. All of these
    may be overridden in a subclass, or given as a keyword.

    Parameters
    ----------
    dataset : object with ``__getitem__`` and ``__len__``, or iterable | None
        Attributes that the loader lacks are looked up on it.
    bs : int | None
        Items per batch; None: the items are batches already.
    num_workers : int
        Worker processes; worker w makes the batches w, w + num_workers, ... of the epoch.
    pin_memory : bool
        Batches in page-locked memory. A batch that is a list becomes a tuple.
    timeout : float
        Seconds to wait for a batch of a worker; 0 for no limit.
    batch_size : int | None
        The same as ``bs``.
    shuffle : bool
        By ``rng``, which is seeded from ``random`` when the loader is built.
    drop_last : bool
    indexed : bool | None
        Whether items are accessed by number. Default: whether the dataset can be indexed.
    n : int | None
        Items per epoch. Default ``len(dataset)``; None for no end, or until the dataset ends.
    device : str | int | torch.device | None
        Device of the batches.
    persistent_workers : bool
        Not used: as in fastai, each epoch starts its own worker processes.
    pin_memory_device : str
    **callbacks
        wif, before_iter, after_item, before_batch, after_batch, after_iter, create_batches,
        create_item, create_batch, retain, get_idxs, sample, shuffle_fn, do_batch. A function
        replaces the method and gets no ``self``.

    Attributes
    ----------
    rng : random.Random
    fake_l : FakeLoader
        The number of workers (``num_workers`` itself reads 1 in the learner's process, as in
        fastai), ``no_multiproc``.
    offs : int
        This worker's number; 0 in the learner's process.

    Raises
    ------
    ValueError
        For shuffling a dataset without indices, and for negative numbers.
    AssertionError
        ``drop_last`` without a batch size.
    TypeError
        For an unknown keyword, with the nearest name.
    """

    _noop_methods: ClassVar[list[str]] = list(parts.NOTHING_BY_DEFAULT)
    _methods: ClassVar[list[str]] = list(parts.NAMES)
    _given_n: int | None = None

    def __init__(
        self,
        dataset: Any = None,
        bs: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        timeout: float = 0,
        batch_size: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        indexed: bool | None = None,
        n: int | None = None,
        device: Any = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        **keywords: Any,
    ) -> None:
        parts.take(self, keywords)
        bs = bs if batch_size is None else batch_size
        if bs is None and drop_last:
            raise AssertionError("drop_last without a batch size: give bs, or leave drop_last out")
        _at_least("bs", bs, 1)
        _at_least("num_workers", num_workers, 0)
        _at_least("timeout", timeout, 0)
        if indexed is None:
            indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        if shuffle and not indexed:
            raise ValueError(
                "an iterable dataset has no order to shuffle: leave shuffle out, or give a dataset "
                "with __getitem__"
            )
        self.dataset = dataset
        self.bs = bs
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.indexed = indexed
        self.n = _length(dataset) if n is None else n
        self._given_n = n
        self.pin_memory, self.timeout, self.device = pin_memory, timeout, device
        self.rng = random.Random(random.randint(0, 2**32 - 1))
        self.num_workers, self.offs = 1, 0
        self.fake_l = FakeLoader(
            self, pin_memory, num_workers, timeout, persistent_workers, pin_memory_device
        )

    def __len__(self) -> int:
        if self.n is None:
            raise TypeError("the number of items is unknown: give n")
        if self.bs is None:
            return int(self.n)
        return int(self.n // self.bs if self.drop_last else -(-self.n // self.bs))

    # -- in the learner's process ------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch.

        Raises
        ------
        RuntimeError
            No batch within ``timeout``, or a worker died.
        BaseException
            The exception of a callback or the dataset. The epoch is over then.
        """
        self.randomize()
        self.before_iter()
        batches = self._batches()
        try:
            for batch in batches:
                if self.pin_memory:
                    batch = pinned(batch) if torch.accelerator.is_available() else batch
                    batch = tuple(batch) if type(batch) is list else batch
                if self.device is not None:
                    move = partial(_moved, device=self.device)
                    batch = retain_types(tree.transform(batch, move), batch)
                yield self.after_batch(batch)
        finally:
            getattr(batches, "close", _nothing)()
        self.after_iter()
        vars(self).pop("it", None)

    def _batches(self) -> Iterator[Any]:
        idxs, number = self.get_idxs(), self.fake_l.num_workers
        # As torch's iterators do, with and without workers, so that a seed gives the same run.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        keep_freed_memory()
        if not number:
            self._idxs = idxs
            return iter(self.create_batches(self.sample()))
        streams = WorkerStreams(self.copy_for_workers(), idxs)
        return batches_of(streams, number, seed, self.fake_l.timeout)  # type: ignore[no-any-return]

    def copy_for_workers(self) -> DataLoader:
        """Return a copy for the workers, which does not keep the loader itself alive."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, MethodType) and value.__self__ is self:
                setattr(other, name, MethodType(value.__func__, other))
        other.fake_l = self.fake_l.of(other)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the epoch in progress and process-local parts."""
        return {name: value for name, value in vars(self).items() if name not in ("it", "_idxs")}

    def randomize(self) -> None:
        """Set a new generator for this epoch, seeded by that of the last one."""
        self.rng = random.Random(self.rng.randint(0, 2**32 - 1))

    def get_idxs(self) -> Any:
        """Return the sample: numbers, or None for each item of an iterable dataset."""
        idxs: Any = Endless(self.indexed)
        if self.n is not None:
            idxs = list(itertools.islice(idxs, self.n))
        return self.shuffle_fn(idxs) if self.shuffle else idxs

    def shuffle_fn(self, idxs: Sequence[Any]) -> Iterable[Any]:
        return self.rng.sample(idxs, len(idxs))

    # -- the rest ----------------------------------------------------------------------------------

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> Any:
        """Return a loader with the same settings and callbacks, except those given here.

        If ``n`` was given, it is kept for the same dataset only.
        """
        same = dataset is None or dataset is self.dataset
        fake = self.fake_l
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        settings |= {"dataset": self.dataset if dataset is None else dataset}
        settings |= {"num_workers": fake.num_workers, **parts.given(self)}
        if same and self._given_n is not None:
            settings["n"] = self._given_n
        for name in ("persistent_workers", "pin_memory_device"):
            if value := getattr(fake, name):
                settings[name] = value
        return (cls or type(self))(**{**settings, **kwargs})

    def one_batch(self) -> Any:
        """Return the first batch, made in this process; ``None`` if there are no batches.

        Raises
        ------
        ValueError
            If the loader is known to have no batches.
        """
        if self.n is not None and not len(self):
            raise ValueError(
                f"This DataLoader does not contain any batches: it has {self.n} items, bs is "
                f"{self.bs}"
            )
        with self.fake_l.no_multiproc():
            epoch = iter(self)
            batch = next(epoch, None)
            epoch.close()  # type: ignore[attr-defined]
        vars(self).pop("it", None)
        return batch

    def to(self, device: Any) -> None:
        """Move batches to ``device`` from now on, and the transforms of after_batch at once."""
        self.device = device

    @property
    def device(self) -> Any:
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        self._device = None if device is None else torch.device(device)
        for transform in getattr(self.after_batch, "fs", ()):
            _move_transform(transform, device)


_SETTINGS = ("pin_memory", "timeout", "bs", "shuffle", "drop_last", "indexed", "device")


def _nothing() -> None:
    """Do nothing: create_batches returned no generator to close."""


def _moved(value: Any, device: torch.device) -> Any:
    """Return a tensor on a device; objects with a ``to_device`` method move themselves."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    return value.to_device(device) if hasattr(value, "to_device") else value


def _move_transform(transform: Any, device: Any) -> None:
    """Move a transform with a method ``to`` as a whole,
    others by the attributes that ``parameters`` names.
    """
    if callable(getattr(transform, "to", None)):
        transform.to(device)
        return
    names = getattr(transform, "parameters", None) or ()
    for name in [names] if isinstance(names, str) else names:
        value = getattr(transform, name)
        if hasattr(value, "to"):
            setattr(transform, name, value.to(device))


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _at_least(name: str, value: Any, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: give at least {least}")
