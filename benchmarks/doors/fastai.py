"""Loaders of the fastai drop-in module and of fastai itself; the same calls but for the import."""

from collections.abc import Iterable
from typing import Any

from benchmarks.doors.sides import Setting, Side
from benchmarks.doors.workloads import Workload


def make(loader: Any, workload: Workload, setting: Setting) -> Iterable[Any]:
    """A loader of class ``loader``, of either side. Workers that persist are asked for; fastai
    starts new ones all the same.
    """
    persist = setting.workers > 0
    return loader(
        workload.dataset(),
        bs=workload.batch,
        shuffle=True,
        num_workers=setting.workers,
        persistent_workers=persist,
    )


def ours(workload: Workload, setting: Setting) -> Iterable[Any]:
    from async_loader.compat.fastai import DataLoader

    return make(DataLoader, workload, setting)


def theirs(workload: Workload, setting: Setting) -> Iterable[Any]:
    from fastai.data.load import DataLoader

    return make(DataLoader, workload, setting)


OURS, THEIRS = Side("project", ours), Side("fastai", theirs)
