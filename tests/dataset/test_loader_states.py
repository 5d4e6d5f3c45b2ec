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
from hypothesis import given, settings
from state_rig import Epochs, N, OfIterators, Own, Sampler, Stateless
from torch.utils.data import get_worker_info

from async_loader import DataLoader
from async_loader.errors import ConfigError


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
    "shuffled": lambda: {"dataset": list(range(N)), "shuffle": True},
    "in bulk": lambda: {"dataset": np.arange(N), "shuffle": True},
    "passed over": lambda: {"dataset": Stateless()},
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


_SIZED = {"shuffled", "in bulk", *(name for name in MAKERS if "over" in name)} - {"passed over"}


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
        if name in _SIZED:
            assert len(two) == len(expected[0]) + (0 if epoch is None else at)
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
        lambda: {"dataset": Stateless()},
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
@pytest.mark.filterwarnings("ignore:more than .* batches have come")
@pytest.mark.parametrize("at", [None, 1, 5, 10])
@pytest.mark.parametrize("name", ["epochs", "its own iterator"])
def test_so_it_is_with_worker_processes(name, at):
    _goes_on(name, 1, at, num_workers=2)


@pytest.mark.parametrize("prefetch", [1, 20])
@pytest.mark.parametrize("outer", [0, 1, 4])
@pytest.mark.parametrize("last", ["keep", "roll_over"])
def test_an_older_epoch_that_goes_on_changes_nothing_in_the_states_of_the_latest_one(
    prefetch, outer, last
):
    how = {"batch_size": 2, "last_batch": last, "prefetch": prefetch, "num_workers": 1}
    one, two = (
        DataLoader(list(range(N)), sampler=OfIterators(), worker_type="thread", **how)
        for _ in range(2)
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


KINDS = {
    "shuffled": {"shuffle": True},
    "sampler": {"sampler": list(range(20))},
    "rolled over": {"last_batch": "roll_over"},
}


@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("one", KINDS)
def test_a_state_of_another_kind_of_loader_is_refused(one, other):
    state = DataLoader(list(range(20)), batch_size=8, **KINDS[one]).state_dict()
    loader = DataLoader(list(range(20)), batch_size=8, **KINDS[other])
    if one == other:
        loader.load_state_dict(state)
        return
    with pytest.raises(ConfigError, match="another kind"):
        loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="no state_dict of a DataLoader"):
        loader.load_state_dict({"version": state["version"], "seed": 1, "yielded": 0})


def test_an_epoch_of_one_short_batch_is_followed_by_the_next():
    one, two = (DataLoader(list(range(N)), N + 1, sampler=Sampler()) for _ in range(2))
    list(one)
    two.load_state_dict(one.state_dict())
    assert [batch.tolist() for batch in two] == [batch.tolist() for batch in one]
