"""fastai's DataLoader in the drop-in module, with worker processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from async_loader.compat.fastai import DataLoader


def lists(loader):
    return [batch.tolist() for batch in loader]


def flat(loader):
    return [number for batch in lists(loader) for number in batch]


def skip(*numbers):
    return lambda x: None if x in numbers else x


def gone(pids_):
    return [pid for pid in pids_ if os.path.exists(f"/proc/{pid}")] == []


@pytest.mark.parametrize(("number", "bs"), [(2, 4), (3, 3)])
def test_batches_come_in_order_also_the_last_one(number, bs):
    class Slow(list):
        def __getitem__(self, i):
            if i == 0:
                released.wait(1)  # the first batch is the last to be ready
            return super().__getitem__(i)

    released = multiprocessing.Event()
    loader = DataLoader(
        Slow(range(11)),
        bs=bs,
        num_workers=number,
        wif=lambda: get_worker_info().id and released.set(),
    )
    whole = lists(DataLoader(range(11), bs=bs))
    assert lists(loader) == lists(loader) == whole


@pytest.mark.parametrize(
    ("number", "drop_last", "batches"),
    [(2, False, [[0, 2, 3, 8], [4, 5, 7], [9, 10, 11]]), (2, True, [[0, 2, 3, 8]])],
)
def test_skipped_items_are_made_up_for_by_the_same_worker(number, drop_last, batches):
    loader = DataLoader(
        range(12), bs=4, num_workers=number, drop_last=drop_last, after_item=skip(1, 6)
    )
    assert lists(loader) == batches


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_every_worker_goes_through_an_iterable_dataset_of_its_own():
    assert lists(DataLoader(Stream(), bs=4, num_workers=2)) == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [4, 5],
        [4, 5],
    ]
    assert lists(DataLoader(Stream(), bs=2, n=6, num_workers=2)) == [[0, 1], [0, 1], [2, 3]]


def noise(i):
    return (i, random.random(), np.random.rand(), torch.rand(()).item())


def test_the_generators_of_workers_are_seeded_as_fastai_seeds_them():
    torch.manual_seed(7)
    loader = DataLoader(range(4), bs=1, num_workers=2, create_item=noise)
    rows = [[round(value.item(), 6) for value in batch] for batch in loader]
    assert rows == [  # of fastai 2.8.12 with torch 2.13
        [0, 0.929063, 0.459487, 0.116625],
        [1, 0.557419, 0.858567, 0.314840],
        [2, 0.102438, 0.351352, 0.134144],
        [3, 0.461832, 0.147635, 0.280845],
    ]
    assert [[round(value.item(), 6) for value in batch] for batch in loader] != rows


def test_a_shuffled_epoch_is_the_same_with_workers_and_without():
    def epochs(number):
        random.seed(5)
        loader = DataLoader(range(300), bs=7, shuffle=True, num_workers=number)
        found = [lists(loader), loader.one_batch().tolist(), lists(loader), loader.rng.random()]
        for batch in loader:
            found += [
                batch.tolist(),
                next(iter(loader)).tolist() if len(found) < 9 else loader.rng.random(),
            ]
        return found

    assert epochs(2) == epochs(0)


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_ends_the_epoch_and_not_the_loader():
    def fail(i):
        if i in broken:
            raise KeyError("no such item")
        return i

    broken = {3}
    loader = DataLoader(range(8), bs=2, num_workers=2, create_item=fail)
    epoch = iter(loader)
    assert next(epoch).tolist() == [0, 1]
    with pytest.raises(KeyError, match="no such item") as caught:
        next(epoch)
    assert "in fail" in str(caught.value.__cause__)
    assert list(epoch) == []
    broken.clear()
    assert len(list(loader)) == 4


def test_a_killed_worker_is_a_runtime_error():
    loader = DataLoader(
        [1], bs=1, num_workers=1, create_item=lambda i: os.kill(os.getpid(), signal.SIGKILL)
    )
    with pytest.raises(RuntimeError, match=r"worker \(pid\(s\) \d+\) exited unexpectedly.*SIGKILL"):
        list(loader)
