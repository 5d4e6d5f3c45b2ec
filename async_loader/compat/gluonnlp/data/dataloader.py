"""gluonnlp's ShardedDataLoader: like gluon's loader, but a batch may be a list of shards,
one for each device.

Differences from the original: iterators keep their loader alive, a worker that dies is reported at
once and replaced, and the iterator continues after an error.
"""

from __future__ import annotations

from async_loader.compat.gluon.data.dataloader import DataLoaderV1
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
    *args, **kwargs
        As gluon's loader, without ``timeout``. ``batchify_fn`` is by default `default_batchify_fn`:
        only tuples are split, a list is one array.
    """

    _shards = (list, tuple)
