"""compat.torch: what torch's DataLoader and torchdata's stateful one do, ours do; and what
theirs do wrong, ours do not.
"""

from __future__ import annotations

import os
import re
import signal
import time
import warnings

import numpy as np
import pytest
import torch
from torch.utils import data as theirs
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from async_loader.compat import torch as ours
from async_loader.compat.torch import DataLoader, StatefulDataLoader
from async_loader.compat.torch.order import KnownOrder, is_known


@pytest.fixture(autouse=True)
def _few_cores():
    """Ignore torch's warning about more workers than cores, which depends on the machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class Noisy(theirs.Dataset):
    """Items have random numbers of the global generators."""

    def __init__(self, n=11):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i, torch.rand(2), np.random.rand()


class Plain(theirs.Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, i):
        if i == 5:
            raise OSError(5, "two arguments")
        return i


class Info(theirs.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        info = get_worker_info()
        return (
            info.id,
            info.num_workers,
            info.seed,
            isinstance(info.dataset, Info),
            torch.initial_seed(),
        )


class Stream(IterableDataset):
    def __init__(self, n=9, length=None):
        self.n, self.length = n, length

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.n, step))

    def __len__(self):
        if self.length is None:
            raise TypeError("no length")
        return self.length


class Deadly(Plain):
    def __getitem__(self, i):
        if i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return i


class Slow(Plain):
    def __getitem__(self, i):
        time.sleep(60)


def plain(batches):
    def numbers(batch):
        if isinstance(batch, list | tuple):
            return tuple(map(numbers, batch))
        return batch.tolist() if hasattr(batch, "tolist") else batch

    return [numbers(batch) for batch in batches]


OPTIONS = [
    {},
    {"shuffle": True},
    {"shuffle": True, "drop_last": True},
    {"batch_sampler": [[3, 1], [2]], "batch_size": 1},
    {"sampler": [5, -1, 2]},
    {"batch_size": None, "shuffle": True},
    {
        "batch_size": None,
        "sampler": BatchSampler(RandomSampler(range(11)), 4, False),
        "dataset": TensorDataset(torch.arange(11)),
    },
]


WORKERS = [{"shuffle": True, "num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def named(options):
    """Return the same text in every process that collects the tests: without addresses."""
    return re.sub(r" object at 0x[0-9a-f]+", "", str(options))


@pytest.mark.parametrize("options", [*OPTIONS, *WORKERS], ids=named)
def test_order_and_random_numbers_are_those_of_torch(options):
    def passes(kind):
        torch.manual_seed(3)
        np.random.seed(3)
        loader = kind(**{"dataset": Noisy(), "batch_size": 4, **options})
        got = [plain(loader) for _ in range(2)]
        return got, torch.rand(1).item(), np.random.rand()

    assert passes(DataLoader) == passes(theirs.DataLoader)


@pytest.mark.parametrize("size", [1, 3, 5, 20])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_batches_of_indices_are_cut_as_torchs_samplers_cut_them(size, drop, random):
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    samplers = [
        BatchSampler(
            RandomSampler(range(10), generator=g) if random else SequentialSampler(range(10)),
            size,
            drop,
        )
        for g in generators
    ]
    assert is_known(samplers[0])
    drawn = KnownOrder(samplers[0], None, lists=False)
    for _ in range(2):
        assert [b.tolist() for b in drawn.epoch(0, 0)] == list(samplers[1])
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


@pytest.mark.parametrize("size", [3, 4, 5, 20, None])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_break_a_generator_is_where_torchs_loader_leaves_it(size, drop, workers):
    def orders(kind, at):
        generator = torch.Generator().manual_seed(7)
        loader = kind(
            Noisy(10),
            size,
            shuffle=True,
            drop_last=drop and size is not None,
            generator=generator,
            num_workers=workers,
        )
        for number, _ in enumerate(loader, 1):
            if number == at:
                break
        return generator.get_state().tolist()

    ends = (1, 3) if workers else range(1, 5)
    for at in ends:
        assert orders(DataLoader, at) == orders(theirs.DataLoader, at)


class Other(RandomSampler):
    def __iter__(self):
        return iter([4, 2])


@pytest.mark.parametrize(
    "sampler",
    [
        Other(range(10)),
        RandomSampler(range(10), replacement=True, num_samples=45),
        RandomSampler(range(10), num_samples=23),
        RandomSampler(range(10), num_samples=3),
    ],
    ids=["subclass", "replacement", "more", "fewer"],
)
def test_samplers_that_are_not_torchs_usual_ones_are_asked(sampler):
    sampler.generator = torch.Generator().manual_seed(1)
    expected = list(BatchSampler(sampler, 4, False))
    sampler.generator = torch.Generator().manual_seed(1)
    loader = DataLoader(range(10), batch_sampler=BatchSampler(sampler, 4, False))
    assert [batch.tolist() for batch in loader] == expected


def test_arrays_are_gathered_in_bulk_with_the_same_batches():
    dataset = TensorDataset(torch.arange(30).reshape(10, 3), torch.arange(10).to(torch.bfloat16))
    for one in (
        dataset,
        Subset(dataset, [1, 2, 9, 4, 0]),
        np.arange(20).reshape(10, 2),
        torch.arange(10),
    ):
        got = []
        for kind in (DataLoader, theirs.DataLoader):
            torch.manual_seed(2)
            got.append(list(kind(one, batch_size=4, shuffle=True)))
        assert str(got[0]) == str(got[1])
        assert DataLoader(one, batch_size=4)._columns() is not None
    # torch takes the values as items, so there are no columns
    for one in ({0: 1, 1: 2}, (np.zeros(3), np.zeros(3))):
        assert DataLoader(one, batch_size=1)._columns() is None
        assert str(list(DataLoader(one, batch_size=2))) == str(
            list(theirs.DataLoader(one, batch_size=2))
        )


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": 3, "num_workers": 1},
        {"dataset": Stream(), "sampler": [1]},
        {"unknown": 1},
    ],
    ids=named,
)
def test_mistakes_are_those_of_torch(options):
    errors = []
    for kind in (DataLoader, theirs.DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(**{"dataset": Plain(), **options})
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def test_iterable_datasets_are_shared_as_with_torch():
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "drop_last": True}):
        assert plain(DataLoader(Stream(), batch_size=2, **options)) == plain(
            theirs.DataLoader(Stream(), batch_size=2, **options)
        )


def test_workers_have_the_numbers_that_torch_gives():
    torch.manual_seed(4)
    ours = list(DataLoader(Info(), batch_size=None, num_workers=2, worker_init_fn=_check_info))
    torch.manual_seed(4)
    assert ours == list(theirs.DataLoader(Info(), batch_size=None, num_workers=2))


def _check_info(worker):
    assert get_worker_info().id == worker
    assert torch.initial_seed() == get_worker_info().seed


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_keeps_its_type_and_the_pass_goes_on(workers):
    got, errors = [], []
    passing = iter(DataLoader(Plain(), batch_size=2, num_workers=workers))
    for _ in range(4):
        try:
            got.append(next(passing).tolist())
        except OSError as error:
            errors.append(error)
    assert got == [[0, 1], [2, 3], [6]]
    assert errors[0].args == (5, "two arguments")
    if workers:
        assert "__getitem__" in str(errors[0].__cause__)
    with pytest.raises(StopIteration):
        next(passing)


def test_a_worker_that_dies_is_a_runtime_error_and_the_others_go_on():
    passing, got = iter(DataLoader(Deadly(), batch_size=1, num_workers=2)), []
    with pytest.raises(
        RuntimeError, match=r"worker \(pid\(s\) \d+\) exited unexpectedly: .*SIGKILL.*batch 3"
    ):
        got.extend(batch.item() for batch in passing)
    got.extend(batch.item() for batch in passing)
    assert sorted(got) == [0, 1, 2, 4, 5, 6]


def test_time_limits():
    with pytest.raises(AssertionError, match="timeout is 5"):
        iter(DataLoader(Plain(), timeout=5))
    passing = iter(DataLoader(Slow(), num_workers=1, timeout=0.1))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.1 seconds: .*worker 0"):
        next(passing)
    passing.close()


def test_persistent_workers_persist_and_passes_may_be_nested():
    loader = DataLoader(Noisy(4), batch_size=2, num_workers=2, persistent_workers=True)
    list(loader)
    workers = loader._engine.processes
    # torch's outer loop ends after the first inner one
    assert [len(list(loader)) for _ in loader] == [2, 2]
    assert loader._engine.processes == workers
    loader.close()
    assert len(list(loader)) == 2
    loader.close()


class Told(Plain):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        return self.epoch


def test_persistent_workers_follow_set_epoch():
    dataset = Told()
    loader = DataLoader(dataset, batch_size=7, num_workers=1, persistent_workers=True)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        assert plain(loader) == [[epoch] * 7]
    loader.close()


class Paced(IterableDataset):
    """Worker 1 yields nothing before its gate is opened."""

    def __init__(self, gate):
        self.gate = gate

    def __iter__(self):
        worker = get_worker_info().id
        if worker == 1:
            os.close(os.open(self.gate, os.O_RDONLY))
        return iter([worker] * 40)


def test_without_in_order_a_slow_stream_does_not_delay_the_others(tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    loader = DataLoader(Paced(gate), batch_size=None, num_workers=2, in_order=False, timeout=60)
    passing = iter(loader)
    assert [next(passing) for _ in range(40)] == [0] * 40
    os.close(os.open(gate, os.O_WRONLY))
    assert list(passing) == [1] * 40


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [None, 9])
def test_a_list_of_a_pass_over_an_iterable_dataset_has_all_batches(kind, workers, length):
    options = {"batch_size": 2, "num_workers": workers}
    expected = plain(theirs.DataLoader(Stream(), **options))
    loader = kind(Stream(length=length), **options)
    assert plain(list(iter(loader))) == plain(tuple(iter(loader))) == expected
    assert plain(sorted(iter(kind(Stream(length=length), batch_size=None)))) == list(range(9))


# -- the stateful one ------------------------------------------------------------------------------


# -- a script in torch's own style, with one line changed ------------------------------------------


SCRIPT = """
import torch
from torch import nn
{line}
from torch.utils.data import TensorDataset, random_split

def main():
    torch.manual_seed(0)
    images, labels = torch.rand(400, 1, 8, 8), torch.randint(0, 10, (400,))
    images[torch.arange(400), 0, labels % 8, labels // 2] += 3.0
    train, test = random_split(TensorDataset(images, labels), [320, 80])
    workers = dict(num_workers=2, persistent_workers=True, pin_memory=False)
    train_loader = DataLoader(train, batch_size=32, shuffle=True, **workers)
    test_loader = DataLoader(test, batch_size=80)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        model.train()
        for step, (x, y) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        assert step + 1 == len(train_loader) == 10
        model.eval()
        with torch.no_grad():
            x, y = next(iter(test_loader))
            accuracy = (model(x).argmax(1) == y).float().mean().item()
    return loss.item(), accuracy

if __name__ == "__main__":
    RESULT = main()
"""


@pytest.mark.slow
def test_a_training_script_gives_the_same_numbers_with_one_line_changed():
    results = []
    for line in (
        "from torch.utils.data import DataLoader",
        "from async_loader.compat.torch import DataLoader",
    ):
        names = {"__name__": "__main__"}
        exec(compile(SCRIPT.format(line=line), "script", "exec"), names)
        results.append(names["RESULT"])
    assert results[0] == results[1]
    assert results[0][1] > 0.8


@pytest.mark.parametrize("name", theirs.__all__)
def test_all_names_of_torchs_module_can_be_imported_and_the_loader_is_ours(name):
    found = getattr(ours, name)
    assert (found is getattr(theirs, name)) == (name != "DataLoader")
    assert name in ours.__all__
    assert ours.DataLoader is DataLoader


def test_a_subset_takes_the_items_of_a_tuple_by_their_places():
    pair = (torch.arange(4), torch.arange(20, 24))
    one, other = (
        kind(Subset(pair, [1, 0]), batch_size=2) for kind in (DataLoader, theirs.DataLoader)
    )
    assert [batch.tolist() for batch in one] == [batch.tolist() for batch in other]
