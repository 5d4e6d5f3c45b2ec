"""The loading part of ``gluonnlp.data``: the sharded loader, samplers by length and by part,
batchify functions.
"""

from async_loader.compat.gluonnlp.data import batchify, dataloader, sampler
from async_loader.compat.gluonnlp.data.buckets import (
    BucketScheme,
    ConstWidthBucket,
    ExpWidthBucket,
    LinearWidthBucket,
)
from async_loader.compat.gluonnlp.data.dataloader import ShardedDataLoader
from async_loader.compat.gluonnlp.data.sampler import (
    FixedBucketSampler,
    SortedBucketSampler,
    SortedSampler,
    SplitSampler,
)
from async_loader.public_names import set_public_names

__all__ = [
    "BucketScheme",
    "ConstWidthBucket",
    "ExpWidthBucket",
    "FixedBucketSampler",
    "LinearWidthBucket",
    "ShardedDataLoader",
    "SortedBucketSampler",
    "SortedSampler",
    "SplitSampler",
    "batchify",
    "dataloader",
    "sampler",
]
set_public_names(globals())
