"""compat.torch.StatefulDataLoader: whatever the dataset, the sampler and the place, a resumed run
is the rest of the first.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import pickle
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    get_worker_info,
)

from async_loader.compat.torch import StatefulDataLoader

N = 10


@pytest.fixture(autouse=True)
def _few_cores():
    """Ignore torch's warning about more workers than cores, which depends on the machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class Kept:
    """Has the named attributes as its state."""

    keeps: tuple[str, ...] = ()

    def state_dict(self):
        return {name: getattr(self, name) for name in self.keeps}

    def load_state_dict(self, state):
        for name in self.keeps:
            setattr(self, name, state[name])


def _share():
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Stateless(IterableDataset):
    def __iter__(self):
        first, step = _share()
        return iter(range(first, N, step))


class Epochs(Kept, IterableDataset):
    """Starts over at its end, and counts that."""

    keeps = ("at", "epoch")
    at = epoch = 0

    def __iter__(self):
        first, step = _share()
        while first + self.at * step < N:
            self.at += 1
            yield 100 * self.epoch + first + (self.at - 1) * step
        self.at, self.epoch = 0, self.epoch + 1


class Steps(Kept):
    keeps = ("at",)

    def __init__(self, stop):
        self.first, self.step = _share()
        self.at, self.stop = 0, stop

    def __iter__(self):
        return self

    def __next__(self):
        item = self.first + self.at * self.step
        if item >= self.stop:
            raise StopIteration
        self.at += 1
        return item


class OfSteps(IterableDataset):
    """The iterator has a state."""

    def __iter__(self):
        return Steps(N)


class Both(Kept, IterableDataset):
    """Dataset and iterator have states of different formats."""

    keeps = ("stop",)
    stop = N

    def __iter__(self):
        return Steps(self.stop)


class Own(Kept, IterableDataset):
    """Its own iterator, set up on access."""

    keeps = ("place",)

    def __iter__(self):
        self.place = list(_share())
        return self

    def __next__(self):
        item, step = self.place
        if item >= N:
            raise StopIteration
        self.place[0] += step
        return item


class Noisy(Kept, Dataset):
    """Items with numbers of a generator of its own."""

    keeps = ("numbers",)

    def __init__(self):
        self.numbers = 7

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.numbers = self.numbers * 75 % 65537
        return 1000 * i + self.numbers % 1000


class Sampler(Kept):
    """Counts its epochs, and starts over after its last index."""

    keeps = ("at", "epoch")
    at = epoch = 0

    def __iter__(self):
        while self.at < N:
            self.at += 1
            yield (self.at - 1 + self.epoch) % N
        self.at, self.epoch = 0, self.epoch + 1

    def __len__(self):
        return N


class Distributed(Kept):
    """As torchdata's StatefulDistributedSampler: it is set back by the next epoch,
    not at the end of its own.
    """

    keeps = ("yielded",)
    yielded, resumed = 0, None

    def __iter__(self):
        self.yielded, self.resumed = self.resumed or 0, None
        for index in range(self.yielded, N):
            self.yielded += 1
            yield index

    def load_state_dict(self, state):
        self.resumed = state["yielded"]

    def __len__(self):
        return N


class OfIterators:
    def __iter__(self):
        return Steps(N)

    def __len__(self):
        return N


def _of_one_generator(sampler):
    generator = torch.Generator().manual_seed(7)
    return {"dataset": list(range(N)), "sampler": sampler(generator), "generator": generator}


DATASETS = {
    "stateless stream": lambda: {"dataset": Stateless()},
    "stream of epochs": lambda: {"dataset": Epochs()},
    "stream whose iterator has a state": lambda: {"dataset": OfSteps()},
    "stream with two states": lambda: {"dataset": Both()},
    "stream that is its own iterator": lambda: {"dataset": Own()},
    "items": lambda: {"dataset": list(range(N))},
    "items with a state": lambda: {"dataset": Noisy()},
    "arrays": lambda: {"dataset": torch.arange(N)},
    "shuffled": lambda: {"dataset": list(range(N)), "shuffle": True},
    "shuffled arrays": lambda: {"dataset": torch.arange(N), "shuffle": True},
    "shuffled with a generator": lambda: {
        "dataset": list(range(N)),
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
    },
    "a random sampler": lambda: {
        "dataset": Noisy(),
        "sampler": RandomSampler(range(N), generator=torch.Generator().manual_seed(6)),
    },
    "with replacement": lambda: {
        "dataset": list(range(N)),
        "sampler": RandomSampler(range(N), True, N, generator=torch.Generator().manual_seed(6)),
    },
    "a random sampler with the loader's generator": lambda: _of_one_generator(
        lambda generator: RandomSampler(range(N), generator=generator)
    ),
    "a subset's sampler with the loader's generator": lambda: _of_one_generator(
        lambda generator: SubsetRandomSampler(range(N), generator=generator)
    ),
    "a sampler of epochs": lambda: {"dataset": list(range(N)), "sampler": Sampler()},
    "a batch sampler of epochs": lambda: {
        "dataset": list(range(N)),
        "batch_sampler": BatchSampler(Sampler(), 3, drop_last=False),
    },
    "a distributed sampler": lambda: {"dataset": list(range(N)), "sampler": Distributed()},
    "a sampler whose iterator has a state": lambda: {"dataset": Noisy(), "sampler": OfIterators()},
}


def _made(name, **options):
    arguments = DATASETS[name]()
    if "batch_sampler" not in arguments:
        arguments["batch_size"] = options.pop("batch_size", 3)
    options.pop("batch_size", None)
    return StatefulDataLoader(**arguments, **options)


def _numbers(batches):
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def _goes_on(name, epochs, at, *, later=2, **options):
    """Assert that a loader which loads the state after ``at`` batches of epoch ``epochs`` goes on
    as the one that saved it.
    """
    torch.manual_seed(1)
    one = _made(name, **options)
    for _ in range(epochs):
        list(one)
    epoch = None if at is None else iter(one)
    for _ in range(at or 0):
        if next(epoch, None) is None:
            epoch = None
            break
    state = one.state_dict()
    expected = [_numbers(one if epoch is None or n else epoch) for n in range(later)]
    torch.manual_seed(2)  # in another process the global generator is in another state
    two = _made(name, **options)
    two.load_state_dict(json.loads(json.dumps(state)))
    assert two.state_dict() == state
    assert [_numbers(two) for _ in range(later)] == expected
    one.close()
    two.close()


@pytest.mark.slow
@given(
    name=st.sampled_from(list(DATASETS)),
    epochs=st.integers(0, 2),
    at=st.sampled_from([None, 0, 1, 2, 3, 4, 5, 10]),
    batch_size=st.sampled_from([None, 1, 3, 5]),
)
@settings(max_examples=300)
def test_a_resumed_run_is_the_rest_of_the_first(name, epochs, at, batch_size):
    if at == 0 and epochs and name == "a distributed sampler":
        at = 1  # its generator has a state only after it has begun, as with torchdata
    _goes_on(name, epochs, at, batch_size=batch_size, later=3)


WITH_WORKERS = [
    name
    for name in DATASETS
    if name not in ("items", "arrays", "with replacement", "a distributed sampler")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_so_it_is_with_workers(name, persistent):
    for epochs, at in ((1, None), (0, 1)) if persistent else ((0, 1), (1, 3)):
        _goes_on(name, epochs, at, num_workers=2, persistent_workers=persistent)


@pytest.mark.slow
@given(
    at=st.sampled_from([None, 0, 1, 2, 4]),
    name=st.sampled_from(["stream of epochs", "items with a state"]),
)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_states_are_whole_before_every_worker_gave_a_batch(at, name):
    _goes_on(name, 0, at, num_workers=2, persistent_workers=True, batch_size=None)


def test_a_state_of_a_resumed_pass_is_as_good_as_the_first():
    for name in DATASETS:
        first = _made(name, num_workers=0)
        epoch = iter(first)
        next(epoch)
        state = first.state_dict()
        rest = _numbers(epoch)
        second = _made(name)
        second.load_state_dict(state)
        epoch = iter(second)
        assert _numbers([next(epoch)]) == rest[:1]
        third = _made(name)
        third.load_state_dict(json.loads(json.dumps(second.state_dict())))
        assert _numbers(third) == rest[1:]


class Held(Dataset):
    """Item 0 waits for a signal."""

    def __init__(self, context, fails=False):
        self.go, self.fails = context.Event(), fails

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i == 0:
            assert self.go.wait(60)
        if i == 3 and self.fails:
            raise LookupError("item 3")
        return i


@pytest.mark.parametrize("fails", [False, True])
def test_out_of_order_nothing_is_lost(fails):
    dataset = Held(multiprocessing.get_context("fork"), fails)
    how = {
        "batch_size": None,
        "num_workers": 2,
        "in_order": False,
        "multiprocessing_context": "fork",
    }

    def taken(epoch, count):
        got = []
        for _ in range(count):
            try:
                got.append(next(epoch))
            except LookupError:
                got.append("failed")
            except StopIteration:
                break
        return got

    one, two, three = (StatefulDataLoader(dataset, **how) for _ in range(3))
    epoch = iter(one)
    seen = taken(epoch, 4)
    assert 0 not in seen
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    again = iter(two)
    more = taken(again, 2)
    assert 0 not in more
    three.load_state_dict(json.loads(json.dumps(two.state_dict())))
    dataset.go.set()
    for rest in (taken(epoch, N), more + taken(again, N), more + taken(iter(three), N)):
        assert {*seen, *rest} == {0, 1, 2, "failed" if fails else 3, *range(4, N)}


def test_shuffle_has_the_order_of_a_generator_that_is_made_with_the_loader():
    torch.manual_seed(3)
    loader = StatefulDataLoader(list(range(N)), batch_size=None, shuffle=True)
    torch.manual_seed(3)
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        assert list(loader) == torch.randperm(N, generator=generator).tolist()


def test_a_generator_of_the_user_gives_the_order_first_and_then_the_seed():
    generator = torch.Generator().manual_seed(4)
    loader = StatefulDataLoader(list(range(N)), batch_size=None, shuffle=True, generator=generator)
    same = torch.Generator().manual_seed(4)
    for _ in range(2):
        assert list(loader) == torch.randperm(N, generator=same).tolist()
        torch.empty((), dtype=torch.int64).random_(generator=same)
    assert torch.equal(generator.get_state(), same.get_state())


def test_an_empty_state_is_that_of_a_loader_that_gave_nothing():
    loader = _made("items")
    next(iter(loader))
    loader.load_state_dict({})
    assert loader.state_dict()["yielded"] == 0
    assert _numbers(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    with pytest.raises(ValueError, match="no state_dict"):
        loader.load_state_dict({"something": "else"})


@pytest.mark.parametrize("every", [0, 1, 17])
def test_a_state_is_exact_whatever_snapshot_every_n_steps_is(every):
    one, two = (_made("stream of epochs", snapshot_every_n_steps=every) for _ in range(2))
    epoch = iter(one)
    next(epoch)
    two.load_state_dict(one.state_dict())
    assert _numbers(two) == _numbers(epoch)


def test_a_mismatch_of_num_workers_is_found_by_iter():
    state = _made("items").state_dict()
    loader = _made("items", num_workers=2)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(
            AssertionError, match="0 workers, this loader has 2: num_workers must match"
        ):
            iter(loader)


def _refuse(worker):
    raise LookupError(f"worker {worker} has no licence")


@pytest.mark.parametrize("name", ["stateless stream", "stream of epochs", "items"])
def test_passing_over_a_stream_without_a_state_is_a_warning(name, caplog):
    one, two = _made(name), _made(name)
    epoch = iter(one)
    next(epoch)
    next(epoch)
    two.load_state_dict(one.state_dict())
    with caplog.at_level(logging.WARNING, "async_loader"):
        iter(two)
    said = [record.getMessage() for record in caplog.records]
    assert [
        text.startswith("neither the dataset nor its iterator") and "2 batches" in text
        for text in said
    ] == [True] * (name == "stateless stream")


def test_a_pass_under_way_keeps_its_workers_when_a_state_is_loaded():
    loader = _made("stream of epochs", num_workers=1, persistent_workers=True)
    state = loader.state_dict()
    epoch = iter(loader)
    first = _numbers([next(epoch)])
    loader.load_state_dict(state)
    assert _numbers(loader)[:1] == first
    assert len(_numbers(epoch)) == 3
    loader.close()


def test_a_loader_that_has_begun_can_be_pickled():
    loader = _made("items")
    next(iter(loader))
    assert _numbers(pickle.loads(pickle.dumps(loader))) == _numbers(loader)


def test_what_a_state_holds_does_not_change_with_the_pass():
    class Grows(Kept, IterableDataset):
        keeps = ("seen",)

        def __init__(self):
            self.seen = []

        def __iter__(self):
            for i in range(N):
                self.seen.append(i)
                yield i

    loader = StatefulDataLoader(Grows(), batch_size=None)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    before = json.dumps(state)
    assert next(epoch) == 1
    assert json.dumps(state) == before
