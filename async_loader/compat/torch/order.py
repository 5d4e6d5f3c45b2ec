"""The order of torch's samplers, and a pass over arrays: the same draws from the same generators,
without Python code for each item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from async_loader.dataset.array_dataset import Columns, Index
from async_loader.dataset.batch_order import Batches, SamplerBatches
from async_loader.shm.hugepages import keep_freed_memory


class KnownOrder(Batches):
    """The batches of indices of one of torch's own samplers, for which `is_known`.

    The order is drawn with the first batch, and once more at the end, as torch's sampler does. It
    has no state.

    Parameters
    ----------
    index_sampler : Sampler
        Gives whole batches of indices, or single ones.
    dataset : object
        The dataset that the indices refer to.
    lists : bool
        A batch of indices is a list, passed to the dataset unchanged.
    """

    def __init__(self, index_sampler: Any, dataset: Any, *, lists: bool) -> None:
        self._index_sampler, self._lists = index_sampler, lists
        self.in_range = _in_range(index_sampler, dataset)

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        sampler = inner(self._index_sampler)
        n, random = len(sampler.data_source), type(sampler) is RandomSampler
        generator = sampler.generator if random else None
        # a generator of the user continues from there; one of this pass alone is not seen
        more = generator is not None
        if random and generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(seed)
        index = torch.randperm(n, generator=generator).numpy() if random else np.arange(n)
        size = getattr(self._index_sampler, "batch_size", 1)
        for task in cuts(index, self._index_sampler, self._lists):
            if more and size > 1 and len(task) < size:
                # torch's batch sampler reaches the sampler's end before it gives this batch
                torch.randperm(n, generator=generator)
                more = False
            yield task
        if more:
            torch.randperm(n, generator=generator)


class Shuffled(SamplerBatches):
    """The batches of torchdata's random sampler, with a state: the order is drawn when the pass
    begins. Parameters are those of `KnownOrder`.
    """

    def __init__(self, index_sampler: Any, dataset: Any, *, lists: bool) -> None:
        super().__init__(index_sampler, None, "keep")
        self._lists, self.in_range = lists, _in_range(index_sampler, dataset)

    def _cut(self) -> Iterator[Any]:
        n = len(self._inner.data_source)
        index = torch.randperm(n, generator=self._generator).numpy()
        return cuts(index, self._sampler, self._lists)


def cuts(index: Index, index_sampler: Any, lists: bool) -> Iterator[Any]:
    """Yield an order as a sampler cuts it: in arrays, in lists, or single indices."""
    if type(index_sampler) is not BatchSampler:
        yield from index.tolist()
        return
    size, n = index_sampler.batch_size, len(index)
    for at in range(0, n - n % size if index_sampler.drop_last else n, size):
        batch = index[at : at + size]
        yield batch.tolist() if lists else batch


def _in_range(index_sampler: Any, dataset: Any) -> bool:
    """Whether the tasks are arrays of indices that need no bounds check."""
    sizes = type(index_sampler) is BatchSampler
    return sizes and inner(index_sampler).data_source is dataset


def inner(index_sampler: Any) -> Any:
    """Return the sampler within one of torch's batch samplers, or the sampler itself."""
    return index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler


def is_known(index_sampler: Any) -> bool:
    """Whether this is one of torch's own samplers, unchanged,
    so that its order can be computed in bulk.
    """
    sampler = inner(index_sampler)
    if type(sampler) is SequentialSampler:
        return True
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    n = len(sampler.data_source)
    generator = sampler.generator
    return (
        n > 0
        and sampler.num_samples == n
        and (generator is None or type(generator) is torch.Generator)
    )


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
