"""The loading part of ``mxnet.gluon.data``: datasets, samplers, batchify functions, the loader,
queues.
"""

from async_loader.compat.gluon.data import batchify, dataloader, dataset, sampler
from async_loader.compat.gluon.data.batchify import default_batchify_fn, default_mp_batchify_fn
from async_loader.compat.gluon.data.dataloader import (
    ConnectionWrapper,
    DataLoader,
    DataLoaderV1,
    Queue,
    SimpleQueue,
)
from async_loader.compat.gluon.data.dataset import (
    ArrayDataset,
    Dataset,
    RecordFileDataset,
    SimpleDataset,
)
from async_loader.compat.gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from async_loader.public_names import set_public_names

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "ConnectionWrapper",
    "DataLoader",
    "DataLoaderV1",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "Queue",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "SimpleQueue",
    "batchify",
    "dataloader",
    "dataset",
    "default_batchify_fn",
    "default_mp_batchify_fn",
    "sampler",
]
set_public_names(globals())
