"""The object that fastai keeps beside its DataLoader: number and settings of the workers."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class FakeLoader:
    """Settings of the workers of one DataLoader, read at each iteration.

    Attributes
    ----------
    d, default : DataLoader
        Held weakly: a dropped loader takes its persistent workers with it at once.
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
        self._loader = weakref.ref(d)
        self.pin_memory = pin_memory
        self.num_workers = num_workers
        self.timeout = timeout
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device

    @property
    def d(self) -> Any:
        return self._loader()

    default = d

    @property
    def dataset(self) -> FakeLoader:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loader": self.d}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _loader=weakref.ref(state["_loader"]))

    def of(self, d: Any) -> FakeLoader:
        """Return the same settings for another loader."""
        other = copy.copy(self)
        other._loader = weakref.ref(d)
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
