"""compat.torch.StatefulDataLoader: whatever the dataset, the sampler and the place, a resumed run
is the rest of the first.
"""

from __future__ import annotations

import json
import multiprocessing
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from state_rig import (
    Both,
    Distributed,
    Epochs,
    N,
    Noisy,
    OfIterators,
    OfSteps,
    Own,
    Sampler,
    Stateless,
)
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
)

from async_loader.compat.torch import StatefulDataLoader


@pytest.fixture(autouse=True)
def _few_cores():
    """Ignore torch's warning about more workers than cores, which depends on the machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


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
@settings(max_examples=100)
def test_a_resumed_run_is_the_rest_of_the_first(name, epochs, at, batch_size):
    if at == 0 and epochs and name == "a distributed sampler":
        at = 1  # its generator has a state only after it has begun, as with torchdata
    _goes_on(name, epochs, at, batch_size=batch_size, later=3)


@pytest.mark.slow
@given(
    at=st.sampled_from([None, 0, 1, 2, 4]),
    name=st.sampled_from(["stream of epochs", "items with a state"]),
)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_states_are_whole_before_every_worker_gave_a_batch(at, name):
    _goes_on(name, 0, at, num_workers=2, persistent_workers=True, batch_size=None)


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


@pytest.mark.parametrize("every", [0, 1, 17])
def test_a_state_is_exact_whatever_snapshot_every_n_steps_is(every):
    one, two = (_made("stream of epochs", snapshot_every_n_steps=every) for _ in range(2))
    epoch = iter(one)
    next(epoch)
    two.load_state_dict(one.state_dict())
    assert _numbers(two) == _numbers(epoch)
