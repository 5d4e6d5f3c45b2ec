"""Parts of fastai's DataLoader: callbacks as keywords, lazy orders, settings of the workers."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType, ModuleType
from typing import Any, NoReturn

import numpy as np
import torch

from async_loader.compat.torch.loader import as_torchs
from async_loader.errors import Timeout, WorkerDied
from async_loader.name_hints import nearest
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.workers.work import WorkContext


class WorkerStreams:
    """The batches of one worker, made by the loader's own methods from its share of the indices.

    Parameters
    ----------
    loader : DataLoader
        A copy for the workers of one epoch.
    idxs : iterable
        Result of get_idxs in the learner's process, once for all workers. Forked workers inherit
        it, so it need not be picklable.
    """

    def __init__(self, loader: Any, idxs: Any) -> None:
        self.loader, self._idxs = loader, idxs

    @property
    def dataset(self) -> Any:
        """The object that torch's get_worker_info returns."""
        return self.loader.fake_l

    def begin(self, here: WorkContext) -> Iterator[Any]:
        """Start in fastai's order: number and share, seeds, wif, and then the samples."""
        loader = self.loader
        loader.num_workers, loader.offs, loader._idxs = here.workers, here.worker, self._idxs
        seed_everything(here.seed)
        loader.fake_l.worker_init_fn(here.worker)
        batches: Iterator[Any] = iter(loader.create_batches(loader.sample()))
        return batches


def seed_everything(seed: int) -> None:
    """Seed the three global generators like fastai."""
    random.seed(seed)
    np.random.seed(seed % (2**32 - 1))
    torch.manual_seed(seed)


def batches_of(streams: WorkerStreams, workers: int, seed: int, timeout_s: float) -> Any:
    """Yield the batches of an epoch, one from each worker in turn, with errors as fastai's callers
    know them. Then the workers end.
    """
    engine = Engine(streams, workers, seeding=None)
    try:
        yield from engine.streams(seed=seed, prefetch=2 * workers, timeout_s=timeout_s or None)
    except (WorkerDied, Timeout) as error:
        raise as_torchs(error, timeout_s) from error
    finally:
        engine.close()


NOTHING_BY_DEFAULT = (
    "wif",
    "before_iter",
    "after_item",
    "before_batch",
    "after_batch",
    "after_iter",
)
NAMES = (
    *NOTHING_BY_DEFAULT,
    "create_batches",
    "create_item",
    "create_batch",
    "retain",
    "get_idxs",
    "sample",
    "shuffle_fn",
    "do_batch",
)


def take(loader: Any, keywords: dict[str, Any]) -> None:
    """Replace methods by the callbacks among ``keywords``.

    A function replaces the method as it is, without ``self``. A bound method, of any object, is
    bound to the loader instead. None leaves the method as it is.

    Raises
    ------
    TypeError
        For a keyword that is not a callback, with the nearest name.
    """
    for name, function in keywords.items():
        if name not in NAMES:
            known = [*NAMES, *inspect.signature(type(loader).__init__).parameters]
            raise TypeError(
                f"{type(loader).__name__} takes no argument {name!r}: {nearest(name, known)}"
            )
        if isinstance(function, MethodType):
            function = MethodType(function.__func__, loader)
        if function is not None:
            setattr(loader, name, function)


def given(loader: Any) -> dict[str, Any]:
    """Return the callbacks that are not methods of the loader's class,
    for another loader like it.
    """
    found = {}
    for name in NAMES:
        value = getattr(loader, name)
        if name in vars(loader) or not isinstance(value, MethodType):
            found[name] = value
    return found


class SkipItemException(Exception):
    """Raised in create_item or after_item: the item is skipped,
    and the batch is filled from the following ones.
    """


def stop(error: type[BaseException] = StopIteration) -> NoReturn:
    """End the items of this worker: raises StopIteration, as an expression."""
    raise error


@dataclass(frozen=True, slots=True)
class Endless:
    """An endless sample of unknown length: 0, 1, 2, ... or None, None, .... Picklable.

    Parameters
    ----------
    counted : bool
        Whether items are numbered.
    """

    counted: bool

    def __iter__(self) -> Iterator[int | None]:
        return itertools.count() if self.counted else itertools.repeat(None)


class GetAttrProxy:
    """Looks up missing attributes, also with one leading underscore,
    on the attribute named by ``_default``.
    """

    _default = "dataset"

    def __getattr__(self, name: str) -> Any:
        """Called only for attributes that do not exist here."""
        wrapped = vars(self).get(self._default)
        special = (name.startswith("__") and name.endswith("__")) or name == self._default
        if wrapped is None or special:
            kind = type(self).__name__
            raise AttributeError(f"{kind} has no attribute {name!r}", name=name, obj=self)
        return getattr(wrapped, name)

    def __dir__(self) -> list[str]:
        others = [name for name in dir(vars(self).get(self._default)) if not name.startswith("__")]
        return sorted({*super().__dir__(), *others})


class FakeLoader:
    """Settings of the workers of one DataLoader, read at each iteration.

    Attributes
    ----------
    d, default : DataLoader
    dataset : FakeLoader
        Itself.
    num_workers : int
        May be changed between epochs.
    timeout : float
        Seconds to wait for a batch of a worker; 0 for no limit.
    """

    def __init__(
        self,
        d: Any,
        pin_memory: bool,
        num_workers: int,
        timeout: float,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        self.d = self.default = d
        self.pin_memory = pin_memory
        self.num_workers = num_workers
        self.timeout = timeout
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device

    @property
    def dataset(self) -> FakeLoader:
        return self

    def of(self, d: Any) -> FakeLoader:
        """Return the same settings for another loader."""
        other = copy.copy(self)
        other.d = other.default = d
        return other

    def __iter__(self) -> Iterator[Any]:
        """Yield batches made in this process by the loader's own methods."""
        return iter(self.d.create_batches(self.d.sample()))

    @property
    def multiprocessing_context(self) -> ModuleType | None:
        return multiprocessing if self.num_workers > 0 else None

    def worker_init_fn(self, number: int) -> None:
        """Called in the workers."""
        self.d.wif()

    @contextlib.contextmanager
    def no_multiproc(self) -> Iterator[Any]:
        """Give the loader without workers within the block."""
        before = self.num_workers
        self.num_workers = 0
        try:
            yield self.d
        finally:
            self.num_workers = before
