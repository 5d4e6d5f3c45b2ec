"""A pass over arrays: every batch is gathered in the thread that asks for it.

No iteration of the pipeline stands behind it. What that does for each batch (queues, credits, the
course of the epoch) takes as long as a gather of small rows, since a batch that is copied leaves
none of it in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from async_loader.dataset.array_dataset import Columns
from async_loader.shm.hugepages import keep_freed_memory


class GatherPass(Iterator[Any]):
    """One pass over columns, the result of `iter`.

    It is for one thread at a time, as the generator of its tasks is: a second one gets its
    ValueError.

    Parameters
    ----------
    columns : Columns
    tasks : iterator
        One array of indices for each batch, all of them in range.
    length : callable
        Returns the number of batches.
    seed : int
        What torch's worker processes would have been seeded with.
    num_workers : int
        The loader's; none are started.
    """

    def __init__(
        self,
        columns: Columns,
        tasks: Iterator[Any],
        length: Callable[[], int],
        seed: int,
        num_workers: int,
    ) -> None:
        keep_freed_memory()
        self.base_seed = seed
        self._workers: list[Any] = []
        self._num_workers = num_workers
        self._length = length
        self._gather = columns.gather_checked
        self._tasks = tasks

    def __iter__(self) -> GatherPass:
        return self

    def __len__(self) -> int:
        """Number of batches."""
        return self._length()

    def __next__(self) -> Any:
        return self._gather(next(self._tasks))

    def close(self) -> None:
        """There are no more batches; idempotent."""
        self._tasks = iter(())

    def __getstate__(self) -> Any:
        raise NotImplementedError(
            "an iterator of a DataLoader cannot be pickled: pickle the loader", type(self).__name__
        )
