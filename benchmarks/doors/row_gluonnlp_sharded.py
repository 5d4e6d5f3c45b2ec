"""The gluonnlp drop-in module: arrays in batches of four shards of 64, made by one task each."""

from collections.abc import Iterable
from typing import Any

from benchmarks.doors.sides import NO_WORKERS, PROCESSES, Setting, Side, row
from benchmarks.doors.workloads import ARRAYS, IMAGES, Workload, arrays

SHARDS = 4


def _make(data: Any, ArrayDataset: Any, workload: Workload, setting: Setting) -> Iterable[Any]:
    lengths = [1 + i % 10 for i in range(IMAGES)]
    sampler = data.FixedBucketSampler(
        lengths, workload.batch // SHARDS, shuffle=True, num_shards=SHARDS
    )
    threads = setting.kind == "threads"
    dataset = ArrayDataset(*arrays())
    return data.ShardedDataLoader(
        dataset, batch_sampler=sampler, num_workers=setting.workers, thread_pool=threads
    )


def ours(workload: Workload, setting: Setting) -> Iterable[Any]:
    from async_loader.compat import gluon, gluonnlp

    return _make(gluonnlp.data, gluon.data.ArrayDataset, workload, setting)


def theirs(workload: Workload, setting: Setting) -> Iterable[Any]:
    import gluonnlp
    from mxnet import gluon

    return _make(gluonnlp.data, gluon.data.ArrayDataset, workload, setting)


def fields(batch: Any) -> tuple[Any, Any]:
    """The shards on top of each other."""
    import numpy as np

    images, numbers = zip(*batch, strict=True)
    return tuple(
        np.concatenate([one.asnumpy() if hasattr(one, "asnumpy") else one for one in part])
        for part in (images, numbers)
    )  # type: ignore[return-value]


ROW = row(
    "gluonnlp",
    "gluonnlp",
    ARRAYS,
    Side("project", ours, fields),
    Side("gluon", theirs, fields),
    (NO_WORKERS, PROCESSES),
    best=(NO_WORKERS, 4),
)
