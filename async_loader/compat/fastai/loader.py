"""fastai's DataLoader: its signature, its callbacks, its order of calls. Worker processes are the pipeline's."""

from __future__ import annotations

import copy
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, ClassVar, Literal

import torch
from torch.utils.data import IterableDataset

from async_loader.compat.fastai import callbacks, moving
from async_loader.compat.fastai.collating import fa_collate, fa_convert
from async_loader.compat.fastai.delegating import Delegating
from async_loader.compat.fastai.explaining import collate_error
from async_loader.compat.fastai.fake_loader import FakeLoader
from async_loader.compat.fastai.items import Endless, SkipItemException
from async_loader.compat.fastai.retaining import retain_types
from async_loader.compat.fastai.workers import Epoch, Workers
from async_loader.pipeline.heap import keep_freed_memory


class DataLoader(Delegating):
    """Batches of a dataset, with a callback at every step of their making.

    In the learner's process, for each epoch: randomize, before_iter, get_idxs (shuffle_fn). Then in each worker, or here
    where there are none: wif (workers only), sample, create_batches; per item create_item, after_item; per batch
    before_batch, create_batch, retain. Back in the learner's process: the copy to the device, after_batch, and at the
    natural end after_iter. All of these may be overridden in a subclass, or given as a keyword.

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
        Seconds to wait for a batch of a worker; 0 is for ever.
    batch_size : int | None
        The same as ``bs``.
    shuffle : bool
        By ``rng``, which is seeded from ``random`` when the loader is built.
    drop_last : bool
    indexed : bool | None
        Whether items are had by number. Default: whether the dataset can be indexed.
    n : int | None
        Items per epoch. Default ``len(dataset)``; None for ever, or until the dataset ends.
    device : str | int | torch.device | None
        Batches are moved there.
    persistent_workers : bool
        Keep the worker processes from epoch to epoch. They are replaced when an attribute of the loader has been
        changed; changes within the dataset they do not see.
    pin_memory_device : str
    refill : {"worker", "all"}
        Whose later items take the place of skipped ones. "worker", fastai's rule: those of the same worker, so that batches
        depend on the number of workers. "all": batches are as without workers; items are made by the workers, batches of
        them in the learner's process, and ``sample`` and ``create_batches`` are not called.
    **callbacks
        wif, before_iter, after_item, before_batch, after_batch, after_iter, create_batches, create_item, create_batch,
        retain, get_idxs, sample, shuffle_fn, do_batch. A function takes the method's place and gets no ``self``.

    Attributes
    ----------
    rng : random.Random
    fake_l : FakeLoader
        The number of workers (``num_workers`` itself reads 1 in the learner's process, as in fastai), ``no_multiproc``.
    offs : int
        This worker's number; 0 in the learner's process.

    Raises
    ------
    ValueError
        Shuffling what cannot be indexed, negative numbers.
    AssertionError
        ``drop_last`` without a batch size.
    TypeError
        For a keyword that is neither of these, with the nearest name.
    """

    _noop_methods: ClassVar[list[str]] = list(callbacks.NOTHING_BY_DEFAULT)
    _methods: ClassVar[list[str]] = list(callbacks.NAMES)
    _workers: Workers | None = None
    _idxs: Any = ()
    _given_n: int | None = None
    _refill = "worker"

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
        *,
        refill: Literal["worker", "all"] = "worker",
        **keywords: Any,
    ) -> None:
        callbacks.take(self, keywords, _ARGUMENTS)
        bs = bs if batch_size is None else batch_size
        if bs is None and drop_last:
            raise AssertionError("drop_last without a batch size: give bs, or leave drop_last out")
        _at_least("bs", bs, 1)
        _at_least("num_workers", num_workers, 0)
        _at_least("timeout", timeout, 0)
        if indexed is None:
            indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        if shuffle and not indexed:
            raise ValueError("an iterable dataset has no order to shuffle: leave shuffle out, or give a dataset with __getitem__")
        if refill not in ("worker", "all") or (refill == "all" and not indexed):
            raise ValueError(f'refill is {refill!r}: give "worker", or "all" with a dataset that can be indexed')
        self.dataset, self.bs, self.shuffle, self.drop_last, self.indexed = dataset, bs, shuffle, drop_last, indexed
        self.n = _length(dataset) if n is None else n
        self._given_n, self._refill = n, refill
        self.pin_memory, self.timeout, self.device = pin_memory, timeout, device
        self.rng = random.Random(random.randint(0, 2**32 - 1))
        self.num_workers, self.offs = 1, 0
        self.fake_l = FakeLoader(self, pin_memory, num_workers, timeout, persistent_workers, pin_memory_device)

    def __len__(self) -> int:
        if self.n is None:
            raise TypeError("nobody knows how many items there are: give n")
        if self.bs is None:
            return int(self.n)
        return int(self.n // self.bs if self.drop_last else -(-self.n // self.bs))

    # -- in the learner's process ------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """One epoch.

        Raises
        ------
        RuntimeError
            Nothing came within ``timeout``, or a worker died.
        BaseException
            What a callback or the dataset raised. The epoch is over then.
        """
        self.randomize()
        self.before_iter()
        idxs = self.get_idxs()
        batches = self._batches(idxs)
        try:
            for batch in batches:
                if self.pin_memory:
                    batch = moving.pinned(batch)
                    batch = tuple(batch) if type(batch) is list else batch
                if self.device is not None:
                    batch = moving.moved(batch, self.device)
                yield self.after_batch(batch)
        finally:
            getattr(batches, "close", _nothing)()
        self.after_iter()
        vars(self).pop("it", None)

    def _batches(self, idxs: Any) -> Iterator[Any]:
        # As torch's iterators do, with and without workers: so that a seed gives the same run.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        number, timeout_s = self.fake_l.num_workers, self.fake_l.timeout
        keep_freed_memory()
        if not number:
            self._idxs = idxs
            return iter(self.create_batches(self.sample()))
        epoch = Epoch(idxs, vars(self).get("rng"))
        if self.fake_l.persistent_workers:
            if isinstance(idxs, Iterator) and self.n is not None:
                epoch.idxs = list(idxs)
            workers = self._workers_for_ever(number)
        else:
            workers = Workers(self, number, epoch)
        if self._refill == "worker":
            return workers.batches(epoch, seed, timeout_s)
        return self._from_items(workers, epoch, seed, timeout_s)

    def _from_items(self, workers: Workers, epoch: Epoch, seed: int, timeout_s: float) -> Iterator[Any]:
        """Batches made here of items made there, in the order of the indices."""
        tasks, epoch.idxs = _chunks(iter(epoch.idxs), self.bs or 1, drop_last=False), None
        items = workers.items(tasks, epoch, seed, timeout_s)
        try:
            for chunk in self.chunkify(items):
                yield self.do_batch(chunk)
        finally:
            items.close()

    def _workers_for_ever(self, number: int) -> Workers:
        if self._workers is None or not self._workers.fit(self, number):
            if self._workers is not None:
                self._workers.close()
            self._workers = Workers(self, number)
        return self._workers

    def copy_for_workers(self) -> DataLoader:
        """What the workers get: it does not keep the loader itself alive."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, MethodType) and value.__self__ is self:
                setattr(other, name, MethodType(value.__func__, other))
        other.fake_l = self.fake_l.of(other)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to an epoch under way, or to this process."""
        return {name: value for name, value in vars(self).items() if name not in ("it", "_idxs", "_workers")}

    def randomize(self) -> None:
        """A new generator for this epoch, seeded by that of the last one."""
        self.rng = random.Random(self.rng.randint(0, 2**32 - 1))

    def get_idxs(self) -> Any:
        """What there is to sample: numbers, or None for each item of an iterable dataset."""
        idxs: Any = Endless(self.indexed)
        if self.n is not None:
            idxs = list(itertools.islice(idxs, self.n))
        return self.shuffle_fn(idxs) if self.shuffle else idxs

    def shuffle_fn(self, idxs: Sequence[Any]) -> Iterable[Any]:
        return self.rng.sample(idxs, len(idxs))

    # -- where the batches are made ----------------------------------------------------------------------------------

    def sample(self) -> Iterator[Any]:
        """This worker's share of the indices: whole chunks, in turn with the other workers."""
        idxs, size = self._idxs, self.bs or 1
        if self.num_workers == 1:
            return iter(idxs)
        if isinstance(idxs, list):
            starts = range(self.offs * size, len(idxs), self.num_workers * size)
            return itertools.chain.from_iterable(idxs[start : start + size] for start in starts)
        return (idx for i, idx in enumerate(idxs) if i // size % self.num_workers == self.offs)

    def create_batches(self, samps: Iterable[Any]) -> Iterator[Any]:
        """Batches of the items of ``samps``. StopIteration in any callback is the end of them."""
        chunks = iter(self.chunkify(self._items(samps)))
        while True:
            try:
                yield self.do_batch(next(chunks))
            except StopIteration:
                return

    def _items(self, samps: Iterable[Any]) -> Iterator[Any]:
        """The items of ``samps`` that are not left out."""
        if self.indexed and self._is_untouched("do_item", "create_item", "after_item"):
            get = _by_number(self.dataset)
        else:
            get = self._prepared(self.do_item)
        for sample in samps:
            try:
                item = get(sample)
            except StopIteration:
                return
            except SkipItemException:
                continue
            if item is not None:
                yield item

    def _prepared(self, do_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``do_item`` with an iterator over the dataset in ``it``, which is what create_item may take items from."""
        source = self._source()
        if source is None:
            return do_item

        def get(sample: Any) -> Any:
            self.it = source  # a loop within this one has put its own there
            return do_item(sample)

        return get

    def _is_untouched(self, *names: str) -> bool:
        """Whether these methods are those of this class."""
        return all(name not in vars(self) and getattr(type(self), name) is getattr(DataLoader, name) for name in names)

    def _source(self) -> Iterator[Any] | None:
        if self.dataset is None:
            return None
        try:
            source: Iterator[Any] = iter(self.dataset)
        except TypeError:
            if self.indexed:
                return None
            raise
        return source

    def do_item(self, s: Any) -> Any:
        """One item, or None where it is to be left out."""
        try:
            return self.after_item(self.create_item(s))
        except SkipItemException:
            return None

    def create_item(self, s: Any) -> Any:
        if self.indexed:
            return self.dataset[s or 0]
        if s is not None:
            raise IndexError(f"item {s} of an iterable dataset was asked for, which gives items in turn only: ask for None")
        return next(self.it)

    @property
    def prebatched(self) -> bool:
        """Whether items are batches already."""
        return self.bs is None

    def chunkify(self, b: Iterable[Any]) -> Iterable[Any]:
        return b if self.bs is None else _chunks(iter(b), self.bs, self.drop_last)

    def do_batch(self, b: Any) -> Any:
        return self.retain(self.create_batch(self.before_batch(b)), b)

    def create_batch(self, b: Any) -> Any:
        if self.prebatched:
            return fa_convert(b)
        try:
            return fa_collate(b)
        except Exception as error:
            collate_error(error, b)

    def retain(self, res: Any, b: Any) -> Any:
        """``res`` as the type that the first item of ``b`` had."""
        return retain_types(res, b[0] if isinstance(b, list | tuple) and len(b) else b)

    # -- callbacks that do nothing -----------------------------------------------------------------------------------

    def wif(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """In each worker, before its first sample."""
        return x

    def before_iter(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return x

    def after_item(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return x

    def before_batch(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return x

    def after_batch(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return x

    def after_iter(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return x

    # -- the rest ----------------------------------------------------------------------------------------------------

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> Any:
        """A loader with the same settings and callbacks, but for those given here.

        ``n`` is kept, where it was given, for the same dataset only.
        """
        same = dataset is None or dataset is self.dataset
        fake = self.fake_l
        settings: dict[str, Any] = {
            "dataset": self.dataset if dataset is None else dataset,
            "num_workers": fake.num_workers,
            "pin_memory": self.pin_memory,
            "timeout": self.timeout,
            "bs": self.bs,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "indexed": self.indexed,
            "device": self.device,
            **({"n": self._given_n} if same and self._given_n is not None else {}),
            **({"persistent_workers": True} if fake.persistent_workers else {}),
            **({"pin_memory_device": fake.pin_memory_device} if fake.pin_memory_device else {}),
            **({"refill": self._refill} if self._refill != "worker" else {}),
            **callbacks.given(self),
        }
        return (cls or type(self))(**{**settings, **kwargs})

    def one_batch(self) -> Any:
        """The first batch, made in this process; None when there is none.

        Raises
        ------
        ValueError
            When it is known that there is none.
        """
        if self.n is not None and not len(self):
            raise ValueError(f"This DataLoader does not contain any batches: it has {self.n} items, bs is {self.bs}")
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
        self._device = moving.parse(device)
        moving.move_transforms(getattr(self.after_batch, "fs", ()), device)


def _by_number(dataset: Any) -> Callable[[Any], Any]:
    return lambda number: dataset[number or 0]


def _chunks(items: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(items, size)):
        if len(chunk) == size or not drop_last:
            yield chunk


def _nothing() -> None:
    """There is nothing to close: create_batches gave something else than a generator."""


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _at_least(name: str, value: Any, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: give at least {least}")


_ARGUMENTS = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in ("self", "keywords")]
