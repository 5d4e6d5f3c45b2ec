"""States of async_loader.DataLoader over datasets that keep a state: a resumed run is the rest of
the first.
"""

from __future__ import annotations

import json
import random

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from dataset_rig import CountingIterator
from fake_device import FakeBackend
from hypothesis import given, settings
from torch.utils.data import get_worker_info

from async_loader import DataLoader

N = 9


class Epochs:
    """Begins anew when it is through, and counts that."""

    def __init__(self):
        self.at = self.epoch = 0

    def __iter__(self):
        worker = get_worker_info().id if get_worker_info() else 0
        while self.at < N:
            self.at += 1
            yield 1000 * worker + 100 * self.epoch + self.at
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Stream:
    """Iterable, without a state."""

    def __iter__(self):
        return iter(range(N))


class Own:
    """Its own iterator, set up when it is asked for."""

    at = -1

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Sampler:
    """Counts its epochs."""

    def __init__(self):
        self.at = self.epoch = 0

    def __len__(self):
        return N

    def __iter__(self):
        while self.at < N:
            self.at += 1
            yield (self.at + self.epoch) % N
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Named:
    def __getitem__(self, name):
        return ord(name)


class OfArrays:
    """Gives what iteration over an array gives."""

    def __init__(self, array):
        self.array = array

    def __iter__(self):
        return iter(self.array)

    def __len__(self):
        return len(self.array)


MAKERS = {
    "epochs": lambda: {"dataset": Epochs()},
    "its own iterator": lambda: {"dataset": Own()},
    "a sampler": lambda: {"dataset": list(range(N)), "sampler": Sampler()},
    "a sampler that rolls over": lambda: {
        "dataset": list(range(N)),
        "sampler": Sampler(),
        "last_batch": "roll_over",
    },
    "numpy's integers that roll over": lambda: {
        "dataset": list(range(N)),
        "sampler": OfArrays(np.arange(N)[::-1]),
        "last_batch": "roll_over",
    },
    "tensors that roll over": lambda: {
        "dataset": list(range(N)),
        "sampler": OfArrays(torch.arange(N)),
        "last_batch": "roll_over",
    },
    "names that roll over": lambda: {
        "dataset": Named(),
        "sampler": OfArrays("abcdefg"),
        "last_batch": "roll_over",
    },
}


def _batches(epoch):
    return [batch.cpu().tolist() for batch in epoch]


def _goes_on(name, epochs, at, **how):
    with (
        DataLoader(batch_size=2, **MAKERS[name](), **how) as one,
        DataLoader(batch_size=2, **MAKERS[name](), **how) as two,
    ):
        for _ in range(epochs):
            list(one)
        epoch = None if at is None else iter(one)
        for _ in range(at or 0):
            if next(epoch, None) is None:
                epoch = None
                break
        state = json.loads(json.dumps(one.state_dict()))
        expected = [_batches(one if epoch is None or n else epoch) for n in range(3)]
        two.load_state_dict(state)
        assert two.state_dict() == state
        assert [_batches(two) for _ in range(3)] == expected


class Numbered:
    """A sampler that is told the epoch, like torch's DistributedSampler."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(i + self.epoch) % N for i in range(N)])

    def __len__(self):
        return N


@pytest.mark.parametrize("at", [1, 3, None])
@pytest.mark.parametrize(
    "made",
    [
        lambda: {"dataset": list(range(N)), "shuffle": True},
        lambda: {"dataset": np.arange(N), "shuffle": True},
        lambda: {"dataset": list(range(N)), "sampler": Numbered()},
        lambda: {"dataset": Stream()},
    ],
    ids=["shuffled", "in bulk", "a sampler", "a stream"],
)
def test_another_epoch_begins_at_the_front_whatever_was_loaded(made, at):
    one, two, fresh, again = (DataLoader(batch_size=2, seed=5, **made()) for _ in range(4))
    epoch = iter(one)
    for _ in range(N if at is None else at):
        next(epoch, None)
    state = one.state_dict()
    two.load_state_dict(state)
    two.set_epoch(7)
    fresh.set_epoch(7)
    again.load_state_dict(json.loads(json.dumps(two.state_dict())))
    assert again.epoch == 7
    again.set_epoch(7)  # a sampler is told by its user, as ever
    expected = _batches(fresh)
    assert len(expected) == 5
    assert _batches(two) == _batches(again) == expected
    two.load_state_dict(state)
    two.set_epoch(state["epoch"])  # the number of the epoch that was saved
    if at is None:
        one.set_epoch(state["epoch"])
    assert _batches(two) == (_batches(one) if at is None else _batches(epoch))


@pytest.mark.parametrize("name", [name for name in MAKERS if name.endswith("roll over")])
def test_indices_that_roll_over_are_saved_whatever_their_type(name):
    for epochs, at in ((0, None), (1, None), (1, 1), (2, 3)):
        _goes_on(name, epochs, at)


@given(
    name=st.sampled_from(list(MAKERS)),
    epochs=st.integers(0, 2),
    at=st.sampled_from([None, 0, 1, 4, 5, 9]),
    threads=st.booleans(),
)
@settings(max_examples=60)
def test_a_resumed_run_is_the_rest_of_the_first(name, epochs, at, threads):
    _goes_on(name, epochs, at, num_workers=int(threads), worker_type="thread")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:two workers began with the same batch")
@pytest.mark.parametrize("at", [None, 1, 5, 10])
@pytest.mark.parametrize("name", ["epochs", "its own iterator"])
def test_so_it_is_with_worker_processes(name, at):
    _goes_on(name, 1, at, num_workers=2)


@pytest.mark.parametrize("at", [None, 0, 2])
def test_so_it_is_when_batches_are_carried_to_a_device_ahead(at):
    _goes_on("epochs", 1, at, device=FakeBackend())


class Steps(CountingIterator):
    """Of a sampler that has no state."""

    def __iter__(self):
        return self


class OfSteps:
    def __iter__(self):
        return Steps(N)

    def __len__(self):
        return N


@pytest.mark.parametrize("prefetch", [1, 20])
@pytest.mark.parametrize("outer", [0, 1, 4])
@pytest.mark.parametrize("last", ["keep", "roll_over"])
def test_an_older_epoch_that_goes_on_changes_nothing_in_the_states_of_the_latest_one(
    prefetch, outer, last
):
    how = {"batch_size": 2, "last_batch": last, "prefetch": prefetch, "num_workers": 1}
    one, two = (
        DataLoader(list(range(N)), sampler=OfSteps(), worker_type="thread", **how) for _ in range(2)
    )
    with one, two:
        older = iter(one)
        next(older)
        latest = iter(one)
        next(latest)
        for _ in range(outer):
            next(older, None)
        state = json.loads(json.dumps(one.state_dict()))
        rest = _batches(latest)
        assert len(rest) >= 3
        two.load_state_dict(state)
        assert _batches(two) == rest


class Noise:
    """Items with a random number each, in a stream that has no state."""

    def __iter__(self):
        info = get_worker_info()
        return ((i, random.getrandbits(30)) for i in range(info.id, 12, info.num_workers))


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_stream_that_goes_on_repeats_no_random_numbers_of_an_earlier_batch(at):
    how = {"batch_size": 2, "num_workers": 2, "seed": 5}
    with DataLoader(Noise(), **how) as one, DataLoader(Noise(), **how) as two:
        epoch = iter(one)
        for _ in range(at):
            next(epoch)
        two.load_state_dict(json.loads(json.dumps(one.state_dict())))
        expected, got = ([numbers.tolist() for _, numbers in rest] for rest in (epoch, two))
    assert len(expected) == 6 - at
    assert got == expected


class Unfit:
    """Cannot begin in worker 0."""

    def __iter__(self):
        if get_worker_info().id == 0:
            raise LookupError("no share for worker 0")
        return iter(range(4))


def test_a_stream_that_cannot_begin_says_so_and_the_others_go_on():
    with DataLoader(Unfit(), 2, num_workers=2) as loader:
        for _ in range(2):
            epoch = iter(loader)
            with pytest.raises(LookupError, match="no share"):
                next(epoch)
            assert _batches(epoch) == [[0, 1], [2, 3]]


class Greeting:
    """A work whose tasks are of two sorts."""

    def begin(self, here):
        def do(task):
            if task == "fail" or (task == "hello" and here.state == "unfit"):
                raise KeyError("boom")
            return here.worker if task == "hello" else task

        return do
