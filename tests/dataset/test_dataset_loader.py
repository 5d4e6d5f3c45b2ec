"""DataLoader: datasets of all kinds, samplers, last batches, workers, epochs, and going on
elsewhere.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from dataset_rig import same
from fake_device import FakeBackend
from torch.utils.data import IterableDataset, get_worker_info

from async_loader import DataLoader
from async_loader.errors import Closed, ConfigError, JobFailed, Timeout

KINDS = [(0, "process"), (2, "thread"), (2, "process")]


class Squares:
    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == 77:
            raise LookupError("item 77")
        return {"x": np.full(3, i), "y": i * i, "name": f"item {i}"}


class Bulk(Squares):
    asked = 0

    def __getitems__(self, indices):
        Bulk.asked += 1
        return [self[i] for i in indices]


class Noisy:
    """Every item has a random number of a worker's global generator."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return i, torch.rand(1).item(), np.random.rand()


class Range(IterableDataset):
    def __init__(self, n, length=None):
        self.n = n
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.n, step))


class Epochs:
    """Says which epoch it was told of."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.epoch


def drawn(loader):
    """The items of every batch, as plain numbers."""
    return [batch["y"].tolist() if isinstance(batch, dict) else batch.tolist() for batch in loader]


@pytest.fixture(params=KINDS, ids=["inline", "thread", "process"])
def workers(request):
    count, kind = request.param
    return {"num_workers": count, "worker_type": kind}


@pytest.mark.parametrize(
    "dataset", [Squares(), Bulk(), [Squares()[i] for i in range(10)]], ids=["items", "bulk", "list"]
)
def test_a_map_style_dataset_comes_in_order_and_batches_are_collated(dataset, workers):
    with DataLoader(dataset, 4, **workers) as loader:
        assert len(loader) == 3
        for _ in range(2):
            batches = list(loader)
            assert [b["y"].tolist() for b in batches] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
            assert batches[2]["name"] == ["item 8", "item 9"]
            same(batches[0]["x"], torch.arange(4).reshape(4, 1).expand(4, 3).contiguous())


@pytest.mark.parametrize("seed", [0, 1])
def test_shuffling_depends_on_the_seed_and_the_epoch_alone(seed, workers):
    with DataLoader(Squares(30), 30, shuffle=True, seed=seed, **workers) as loader:
        torch.manual_seed(1)
        first, second = drawn(loader)[0], drawn(loader)[0]
        assert sorted(first) == sorted(second) == [i * i for i in range(30)]
        assert first != second
        loader.set_epoch(0)
        assert drawn(loader)[0] == first


@pytest.mark.parametrize(
    ("last", "sizes", "lengths"),
    [
        ("keep", [[4, 4, 2]] * 3, [3] * 3),
        ("drop", [[4, 4]] * 3, [2] * 3),
        ("roll_over", [[4, 4], [4, 4, 4], [4, 4]], [2, 3, 2]),
    ],
)
@pytest.mark.parametrize("sampler", [None, range(10)])
def test_the_last_batch(last, sizes, lengths, sampler):
    loader = DataLoader(Squares(), 4, sampler=sampler, last_batch=last)
    seen = []
    for expected, length in zip(sizes, lengths, strict=True):
        assert len(loader) == length
        batches = drawn(loader)
        assert [len(b) for b in batches] == expected
        seen += [item for batch in batches for item in batch]
    if last == "roll_over":
        assert seen == [i * i for i in range(10)] * 2 + [i * i for i in range(8)]


def test_samplers_and_batch_samplers_are_followed(workers):
    with DataLoader(Squares(), 2, sampler=[5, 1, 3], **workers) as loader:
        assert drawn(loader) == [[25, 1], [9]]
    with DataLoader(Squares(), batch_sampler=[[3], [1, 2]], **workers) as loader:
        assert drawn(loader) == [[9], [1, 4]]
        assert len(loader) == 2
    with DataLoader(Squares(), batch_sampler=[[[3], [1, 2]]], **workers) as loader:
        ((one, two),) = loader
        assert (one["y"].tolist(), two["y"].tolist()) == ([9], [1, 4])


# -- iterable datasets -----------------------------------------------------------------------------


def test_an_iterable_dataset_is_shared_among_processes(workers):
    with DataLoader(Range(11), 2, **workers) as loader:
        for _ in range(2):
            batches = drawn(loader)
            if workers == {"num_workers": 2, "worker_type": "process"}:
                assert batches == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]
            else:
                assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
        with pytest.raises(TypeError):
            len(loader)


# -- workers ---------------------------------------------------------------------------------------


def test_an_error_is_its_own_and_the_loader_goes_on(workers):
    with DataLoader(Squares(), batch_sampler=[[1], [77], [2]], **workers) as loader:
        for _ in range(2):
            epoch = iter(loader)
            assert next(epoch)["y"].tolist() == [1]
            with pytest.raises(LookupError, match="item 77"):
                next(epoch)
            assert next(epoch)["y"].tolist() == [4]
            assert list(epoch) == []


def test_iterations_may_be_nested_and_abandoned(workers):
    with DataLoader(Squares(6), 2, seed=1, **workers) as loader:
        assert [len(list(loader)) for _ in loader] == [3, 3, 3]
        for _ in loader:
            break
        assert drawn(loader) == [[0, 1], [4, 9], [16, 25]]


def test_processes_live_as_long_as_the_loader():
    started = []
    with DataLoader(Squares(4), 2, num_workers=2, worker_init_fn=started.append) as loader:
        list(loader)
        workers = loader._engine.processes
        list(loader)
        assert loader._engine.processes == workers
    assert started == []  # it is called in the workers


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_grows_is_asked_for_its_length_at_each_epoch(workers):
    items = []
    with DataLoader(items, 2, num_workers=workers, worker_type="thread") as loader:
        for epoch in range(1, 3):
            items += range(3)
            assert len(loader) == len(list(loader)) == -(-3 * epoch // 2)


def test_random_numbers_do_not_depend_on_the_worker_that_draws_them():
    def numbers(count, seed):
        with DataLoader(Noisy(), 2, shuffle=True, seed=seed, num_workers=count) as loader:
            return [[b.tolist() for b in batch] for _ in range(2) for batch in loader]

    assert numbers(1, 3) == numbers(2, 3) != numbers(2, 4)


def test_workers_follow_the_epoch():
    dataset = Epochs()
    with DataLoader(dataset, 2, num_workers=1) as loader:
        assert drawn(loader) == [[0, 0]] * 2
        loader.set_epoch(5)
        assert drawn(loader) == [[5, 5]] * 2
        dataset.set_epoch(6)  # not told to the loader
        loader._dataset_epoch = None
        assert drawn(loader) == [[6, 6]] * 2


def test_a_time_limit_names_the_workers_that_are_busy():
    began, event = threading.Event(), threading.Event()

    class Slow(Squares):
        def __getitem__(self, i):
            began.set()
            event.wait(60)
            return i

    with DataLoader(Slow(2), 2, num_workers=1, worker_type="thread", timeout_s=0.05) as loader:
        epoch = iter(loader)
        assert began.wait(60)
        with pytest.raises(Timeout, match="thread 0 is at work on batch 0"):
            next(epoch)
        event.set()
        epoch.iteration._timeout_s = None
        assert next(epoch).tolist() == [0, 1]


# -- going on elsewhere ----------------------------------------------------------------------------


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset", [Squares(), {"x": np.arange(10), "y": np.arange(10) ** 2}], ids=["items", "columns"]
)
def test_batches_are_streamed_to_a_device(dataset, workers):
    backend = FakeBackend()
    with DataLoader(dataset, 4, device=backend, **workers) as loader:
        for _ in range(2):
            assert [batch["y"].cpu().tolist() for batch in loader] == [
                [0, 1, 4, 9],
                [16, 25, 36, 49],
                [64, 81],
            ]
        for _ in loader:
            break
    assert backend.violations == []


def test_a_function_is_called_with_each_batch_ahead_in_a_thread_of_its_own(workers):
    names = []

    def prepare(batch):
        names.append(threading.current_thread().name)
        return {"prepared": batch}

    with DataLoader(Squares(), 4, **workers) as loader:
        loader._backend = prepare
        assert [batch["prepared"]["y"].tolist() for batch in loader] == [
            [0, 1, 4, 9],
            [16, 25, 36, 49],
            [64, 81],
        ]
    assert set(names) == {"async-loader-streamer"}


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shuffle": True, "sampler": [1]}, "leave shuffle out"),
        ({"sampler": 3}, "sampler is int"),
        ({"batch_size": None, "last_batch": "drop"}, "there are no batches"),
        ({"worker_type": "fibres"}, "worker_type is 'fibres'"),
        ({"timeout_s": -1}, "timeout"),
        ({"multiprocessing_context": "clone"}, "multiprocessing_context is 'clone'"),
        ({"dataset": Range(3), "shuffle": True}, "decides its order itself: leave shuffle"),
        ({"dataset": 3}, "dataset is a int"),
    ],
)
def test_what_cannot_work_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        DataLoader(**{"dataset": Squares(), **options})


@pytest.mark.parametrize("kind", [Closed, Timeout])
@pytest.mark.parametrize(("workers", "device"), [(0, None), (2, None), (0, "fake")])
def test_an_error_of_the_users_code_comes_in_its_turn_whatever_its_name(kind, workers, device):
    class Refuses(Squares):
        def __getitem__(self, i):
            if i == 3:
                raise kind("of the dataset's own table")
            return i

    def batches():
        yield from ([i] for i in range(3))
        raise kind("of the sampler's own table")

    given = {} if device is None else {"device": FakeBackend()}
    for made in ({"batch_size": 1}, {"batch_sampler": batches(), "bulk": False}):
        how = {"num_workers": workers, "worker_type": "thread"} if workers else {}
        with DataLoader(Refuses(6), timeout_s=30, **made, **how, **given) as loader:
            found = iter(loader)
            for _ in range(3):
                next(found)
            with pytest.raises((JobFailed, Timeout), match="own table"):
                next(found)
