"""Loaders of the torch drop-in module and of torch itself; the same calls but for the import."""

from collections.abc import Iterable
from typing import Any

from benchmarks.doors.sides import Setting, Side
from benchmarks.doors.workloads import Workload, arrays


def make(kind: Any, workload: Workload, setting: Setting) -> Iterable[Any]:
    """Return a loader of either class, over a dataset that is read item by item."""
    persistent = setting.workers > 0
    return kind(
        workload.dataset(),
        workload.batch,
        shuffle=True,
        num_workers=setting.workers,
        persistent_workers=persistent,
    )


def ours(workload: Workload, setting: Setting) -> Iterable[Any]:
    from async_loader.compat.torch import DataLoader

    return make(DataLoader, workload, setting)


def theirs(workload: Workload, setting: Setting) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return make(DataLoader, workload, setting)


class _InBulk:
    """Arrays that are read a whole batch at once: torch's fastest idiom for them."""

    def __init__(self) -> None:
        self.images, self.numbers = arrays()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: Any) -> tuple[Any, Any]:
        return self.images[indices], self.numbers[indices]


def arrays_ours(workload: Workload, setting: Setting) -> Iterable[Any]:
    """The simplest call: the batches are gathered in bulk all the same."""
    import torch
    from torch.utils.data import TensorDataset

    from async_loader.compat.torch import DataLoader

    dataset = TensorDataset(*map(torch.from_numpy, arrays()))
    return DataLoader(dataset, workload.batch, shuffle=True, num_workers=setting.workers)


def arrays_theirs(workload: Workload, setting: Setting) -> Iterable[Any]:
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    dataset = _InBulk()
    sampler = BatchSampler(RandomSampler(dataset), workload.batch, False)
    persistent = setting.workers > 0
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=setting.workers,
        persistent_workers=persistent,
    )


OURS, THEIRS = Side("project", ours), Side("project", theirs)
ARRAYS_OURS, ARRAYS_THEIRS = Side("project", arrays_ours), Side("project", arrays_theirs)
