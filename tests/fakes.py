"""Small sources for tests. The package itself does not use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Unsupported
from async_loader.lifecycle import EventFd, Patience
from async_loader.source import END, Applied, Plan, Reader, Rows, Seed, Window


class ItemsSource:
    """A map-style dataset as a source: rows in order, epoch after epoch, read one item at a time.

    Parameters
    ----------
    dataset : sequence
        Anything with ``__len__`` and ``__getitem__``.
    batches : int | None
        Number of batches before END; None for no end.
    """

    def __init__(self, dataset: Sequence[Any], batches: int | None = None) -> None:
        self._dataset = dataset
        self._left = batches
        self._next = 0

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        if self._left == 0:
            end: Plan = END
            return end
        if self._left is not None:
            self._left -= 1
        index = np.arange(self._next, self._next + batch_size, dtype=np.int64) % len(self._dataset)
        self._next += batch_size
        return Rows(index)

    def reader(self) -> Reader:
        return ItemsReader(self._dataset)

    def update_priorities(
        self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]
    ) -> Applied:
        raise Unsupported("items have no priorities")


class ItemsReader:
    """A reader without a schema: the type of an item is known once it is read."""

    schema = None

    def __init__(self, dataset: Sequence[Any]) -> None:
        self._dataset = dataset

    def read(self, index: npt.NDArray[np.int64], into: Window, seed: Seed) -> None:
        raise AssertionError("a reader without a schema is asked for samples only")

    def fetch(self, index: npt.NDArray[np.int64], seed: Seed) -> Sequence[Any]:
        return [self._dataset[int(i)] for i in index]


class WaitingSource(ItemsSource):
    """Like `ItemsSource`, but `plan` waits until `add` is called, and reports why."""

    def __init__(self, dataset: Sequence[Any], batches: int | None = None) -> None:
        super().__init__(dataset, batches)
        self._bell = EventFd()
        self._added = False

    def add(self) -> None:
        """Let `plan` return. Any thread."""
        self._added = True
        self._bell.ring()

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        while reason := self.waiting_for():
            patience.wait(self._bell, reason)
            self._bell.clear()
        return super().plan(batch_size, patience)

    def waiting_for(self) -> str | None:
        return None if self._added else "items: 0 were added, 1 is needed"
