"""gluonnlp's ShardedDataLoader: like gluon's loader, but a batch may be a list of shards,
one for each device.

Differences from the original: iterators keep their loader alive, a worker that dies is reported at
once and replaced, and the iterator continues after an error.
"""

from __future__ import annotations

from typing import Any

from async_loader.compat.gluon.data.dataloader import Collate, DataLoaderV1
from async_loader.public_names import set_public_names

__all__ = ["ShardedDataLoader"]
set_public_names(globals())


class ShardedDataLoader(DataLoaderV1):
    """Batches of a dataset; for a ``batch_sampler`` that yields lists of lists of indices,
    lists of batches.

    A list or a tuple within a batch is a shard, so indices cannot be tuples here. All shards of a
    batch are one task.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, last_batch, batch_sampler, num_workers, pin_memory,
    prefetch, thread_pool
        See gluon's loader.
    batchify_fn : callable, optional
        By default `default_batchify_fn`: only tuples are split, a list is one array.
    """

    _shards = (list, tuple)

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
        prefetch: int | None = None,
        thread_pool: bool = False,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            last_batch,
            batch_sampler,
            batchify_fn,
            num_workers,
            pin_memory,
            prefetch=prefetch,
            thread_pool=thread_pool,
        )
