"""What fastai keeps beside its DataLoader: how many workers there are, and how they are run."""

from __future__ import annotations

import contextlib
import multiprocessing
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class FakeLoader:
    """Settings of the workers of one DataLoader, which reads them whenever it is iterated.

    Attributes
    ----------
    d, default : DataLoader
        Not kept alive by this: a loader that is dropped takes its persistent workers with it at once.
    dataset : FakeLoader
        Itself.
    num_workers : int
        May be changed between epochs.
    timeout : float
        Seconds to wait for a batch of a worker; 0 is for ever.
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
        """The same settings for another loader."""
        return FakeLoader(d, self.pin_memory, self.num_workers, self.timeout, self.persistent_workers, self.pin_memory_device)

    def __iter__(self) -> Iterator[Any]:
        """The batches of this process alone, by way of the loader's own methods."""
        return iter(self.d.create_batches(self.d.sample()))

    @property
    def multiprocessing_context(self) -> ModuleType | None:
        return multiprocessing if self.num_workers > 0 else None

    def worker_init_fn(self, number: int) -> None:
        """What the workers call."""
        self.d.wif()

    @contextlib.contextmanager
    def no_multiproc(self) -> Iterator[Any]:
        """The loader, without workers for as long as this lasts."""
        before = self.num_workers
        self.num_workers = 0
        try:
            yield self.d
        finally:
            self.num_workers = before
