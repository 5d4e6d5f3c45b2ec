"""fastai's DataLoader in the drop-in module, with worker processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from async_loader.compat.fastai import DataLoader, stop
from async_loader.errors import CannotSend
from tests.waiting_rig import until


class Image(torch.Tensor):
    pass


def lists(loader):
    return [batch.tolist() for batch in loader]


def flat(loader):
    return [number for batch in lists(loader) for number in batch]


def skip(*numbers):
    return lambda x: None if x in numbers else x


def pids(loader):
    return loader._workers._engine.pids


def end(loader):
    """Wait for the end of the workers; dropping a loader does not wait."""
    loader._workers.close()


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


def test_a_shuffled_epoch_is_a_permutation_and_differs_from_the_last():
    loader = DataLoader(range(50), bs=32, shuffle=True, num_workers=2)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


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


def test_a_queue_is_shared_by_all_workers():
    class Queue:
        def __init__(self, items):
            self.queue = multiprocessing.Queue()
            for item in items:
                self.queue.put(item)

        def __iter__(self):
            while (item := self.queue.get()) is not None:
                yield item

    dataset = Queue([*range(20), None, None])
    found = Counter(flat(DataLoader(dataset, bs=1, num_workers=2)))
    dataset.queue.close()
    dataset.queue.join_thread()
    assert found == Counter(range(20))


def test_each_worker_may_stop_for_itself():
    class Random(DataLoader):
        def create_item(self, s):
            number = random.random()
            return number if number < 0.9 else stop()

    torch.manual_seed(0)
    assert all(len(batch) == 2 for batch in Random(bs=2, num_workers=2, drop_last=True))


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


def test_indices_are_evaluated_once_for_all_workers():
    class Same(DataLoader):
        def get_idxs(self):
            return [random.randrange(self.n)] * self.n

    assert len(set(flat(Same(range(50), bs=8, num_workers=2)))) == 1


def test_wif_runs_in_every_worker_that_knows_its_number():
    class Numbered(DataLoader):
        def wif(self):
            self.tag = (
                self.num_workers,
                self.offs,
                get_worker_info().id,
                get_worker_info().dataset.d is self,
            )

        def create_item(self, s):
            return self.tag

    loader = Numbered(range(2), bs=1, num_workers=2)
    assert [tuple(part.item() for part in batch) for batch in loader] == [
        (2, 0, 0, True),
        (2, 1, 1, True),
    ]
    assert not hasattr(loader, "tag")


def test_types_are_kept_on_the_way():
    image = torch.zeros(2).as_subclass(Image)
    batch = next(iter(DataLoader([(image, 1, "x", {"a": np.ones(1)})] * 2, bs=2, num_workers=1)))
    assert (type(batch), type(batch[0]), batch[2]) == (tuple, Image, ("x", "x"))
    assert batch[3]["a"].dtype == torch.float64


@pytest.mark.parametrize("persistent", [False, True])
def test_a_shuffled_epoch_is_the_same_with_workers_and_without(persistent):
    def epochs(number, **keywords):
        random.seed(5)
        loader = DataLoader(range(300), bs=7, shuffle=True, num_workers=number, **keywords)
        found = [lists(loader), loader.one_batch().tolist(), lists(loader), loader.rng.random()]
        for batch in loader:
            found += [
                batch.tolist(),
                next(iter(loader)).tolist() if len(found) < 9 else loader.rng.random(),
            ]
        if loader._workers is not None:
            end(loader)
        return found

    assert epochs(2, persistent_workers=persistent) == epochs(0)


def test_a_callback_may_keep_batches():
    class Mixing(DataLoader):
        """Adds one kept batch to every batch made in a slot."""

        def do_batch(self, b):
            batch = super().do_batch(b)
            self.kept = [*getattr(self, "kept", []), batch]
            return batch + self.kept[-1 if len(self.kept) < 8 else 7]

    arrays = [np.full(20_000, i + 0.5) for i in range(30)]
    loader = Mixing(arrays, bs=1, num_workers=1)
    assert [batch.unique().tolist() for batch in loader] == [
        [i + 0.5 + min(i, 7) + 0.5] for i in range(30)
    ]


# -- workers that stay -----------------------------------------------------------------------------


def test_persistent_workers_persist_and_others_do_not():
    def whose(_):
        return os.getpid()

    loader = DataLoader(range(8), bs=1, num_workers=2, persistent_workers=True, create_item=whose)
    first, second = set(flat(loader)), set(flat(loader))
    assert first == second == set(pids(loader))
    others = set(flat(DataLoader(range(8), bs=1, num_workers=2, create_item=whose)))
    assert gone(others)
    del loader
    until(lambda: gone(first))


def test_persistent_workers_see_each_epoch_and_every_changed_attribute():
    loader = DataLoader(
        list(range(40)), bs=20, num_workers=2, persistent_workers=True, shuffle=True
    )
    epochs = [flat(loader) for _ in range(3)]
    assert len(set(map(str, epochs))) == 3
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    before = pids(loader)
    loader.shuffle, loader.bs, loader.n = False, 2, 4
    assert lists(loader) == [[0, 1], [2, 3]]
    assert gone(before)
    loader.after_item = lambda x: x * 10
    assert lists(loader) == [[0, 10], [20, 30]]
    end(loader)


def test_persistent_workers_serve_loops_within_loops():
    loader = DataLoader(Stream(), bs=2, num_workers=2, persistent_workers=True, n=8)
    outer = iter(loader)
    first = [next(outer).tolist(), next(outer).tolist()]
    inner = lists(loader)
    assert first + [batch.tolist() for batch in outer] == inner == [[0, 1], [0, 1], [2, 3], [2, 3]]
    end(loader)


def test_an_epoch_broken_off_leaves_persistent_workers_fit():
    loader = DataLoader(range(100), bs=2, num_workers=2, persistent_workers=True)
    for _ in loader:
        break
    before = pids(loader)
    assert lists(loader)[-1] == [98, 99]
    assert pids(loader) == before
    end(loader)


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


def test_a_batch_that_does_not_come_in_time_is_a_runtime_error():
    loader = DataLoader(
        [1], bs=1, num_workers=1, timeout=0.05, create_item=lambda i: threading.Event().wait(60)
    )
    with pytest.raises(RuntimeError, match=r"timed out after 0\.05 seconds"):
        list(loader)


def test_a_killed_worker_is_a_runtime_error():
    loader = DataLoader(
        [1], bs=1, num_workers=1, create_item=lambda i: os.kill(os.getpid(), signal.SIGKILL)
    )
    with pytest.raises(RuntimeError, match=r"worker \(pid\(s\) \d+\) exited unexpectedly.*SIGKILL"):
        list(loader)


def test_an_iterable_dataset_whose_generator_cannot_be_pickled():
    loader = DataLoader((i for i in range(4)), bs=2, num_workers=1)
    if multiprocessing.get_start_method() == "fork":
        assert lists(loader) == [[0, 1], [2, 3]]
    else:
        with pytest.raises(CannotSend, match="generator"):
            lists(loader)


def test_indices_without_end_are_evaluated_as_far_as_batches_are_wanted():
    endless = iter(
        DataLoader(
            bs=1,
            num_workers=1,
            indexed=True,
            create_item=lambda i: i,
            get_idxs=lambda: iter(int, 1),
        )
    )
    assert [next(endless).tolist() for _ in range(3)] == [[0]] * 3
    endless.close()
