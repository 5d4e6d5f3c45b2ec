"""Loaders of the gluon drop-in module and of gluon itself; the same calls but for the import."""

from collections.abc import Iterable
from typing import Any

from benchmarks.doors.sides import Setting, Side
from benchmarks.doors.workloads import ARRAYS, Workload, arrays


def make(data: Any, workload: Workload, setting: Setting) -> Iterable[Any]:
    """Return a loader of ``data``, which is ``gluon.data`` of either side."""
    dataset = data.ArrayDataset(*arrays()) if workload is ARRAYS else workload.dataset()
    threads = setting.kind == "threads"
    return data.DataLoader(
        dataset, workload.batch, shuffle=True, num_workers=setting.workers, thread_pool=threads
    )


def ours(workload: Workload, setting: Setting) -> Iterable[Any]:
    from async_loader.compat import gluon

    return make(gluon.data, workload, setting)


def theirs(workload: Workload, setting: Setting) -> Iterable[Any]:
    from mxnet import gluon

    return make(gluon.data, workload, setting)


OURS, THEIRS = Side("project", ours), Side("gluon", theirs)
