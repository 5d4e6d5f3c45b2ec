"""States of AsyncDataLoader: a loader that goes on elsewhere gives the batches that would have
come.
"""

from __future__ import annotations

import contextlib
import functools
import json

import numpy as np
import pytest
from fake_device import FakeBackend

from async_loader import (
    AsyncDataLoader,
    Mixture,
    Prioritized,
    ReplayBuffer,
    Sequences,
    Transitions,
    Uniform,
)
from async_loader.errors import Closed, ConfigError
from async_loader.feeder import connect
from async_loader.pipeline import source_engine
from async_loader.pipeline.producer import DrawCosts
from async_loader.source import Ready

N, AHEAD = 400, 6


def table(**how):
    made = ReplayBuffer(500, seed=0, **how)
    with made.writer() as writer:
        for x in range(N):
            writer.append(x=float(x), policy_version=x // 100, terminated=x % 37 == 36)
    return made


class Counter:
    """A callable with a state: it counts its calls, and draws."""

    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __call__(self, n):
        return {"x": self.rng.integers(0, 1 << 40, n)}

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]


def prioritized():
    made = table(sampler=Prioritized(0.6, beta=0.5))
    ids = np.sort(made.sample(4096)["index"])
    made.update_priorities(ids[5:900], np.sqrt(ids[5:900] - ids[0] + 1.0))
    return made


MAKERS = {
    "a table": lambda stack: stack.enter_context(table()),
    "priorities": lambda stack: stack.enter_context(prioritized()),
    "columns": lambda stack: {"x": np.arange(N)},
    "a callable": lambda stack: Counter(),
    "sequences": lambda stack: stack.enter_context(table()).source(view=Sequences(4), seed=9),
    "n steps": lambda stack: stack.enter_context(table()).source(
        view=Transitions(3, reward="x"), seed=9
    ),
    "a sampler": lambda stack: stack.enter_context(table()).source(sampler=Uniform()),
    "recent versions": lambda stack: stack.enter_context(table()).source(max_lag=1, seed=4),
    "a mixture": lambda stack: Mixture(
        [(stack.enter_context(table()), 1), (COLUMNS, 2)],
        seed=5,
    ),
    "a feeder": lambda stack: stack.client.table("t"),
    "a feeder's sampler": lambda stack: stack.client.table("t").source(sampler=Uniform(), seed=2),
    "a mixture with a feeder": lambda stack: Mixture(
        [(stack.client.table("t"), 1), (stack.enter_context(table()), 2)], seed=5
    ),
}
COLUMNS = {"x": np.arange(N, dtype=np.float32), "policy_version": np.zeros(N, np.int64)}
COLUMNS |= {name: np.zeros(N, np.bool_) for name in ("terminated", "truncated")}
LOCAL = [name for name in MAKERS if "feeder" not in name]


@pytest.fixture
def client():
    with connect("embedded", tables={"t": 500}) as found:
        with found.table("t").writer() as writer:
            for x in range(N):
                writer.append(x=float(x), policy_version=x // 100, terminated=x % 37 == 36)
        yield found


def keys(batch):
    """What identifies a batch."""
    return [batch[name].cpu().tolist() for name in ("x", "weight") if name in batch]


def goes_on(make, at, client=None, **how):
    with contextlib.ExitStack() as stack:
        stack.client = client
        with AsyncDataLoader(make(stack), 7, seed=11, **how) as one:
            had = [keys(next(one)) for _ in range(at)]
            state = json.loads(json.dumps(one.state_dict()))
            assert state["batches"] == at
            expected = [keys(next(one)) for _ in range(AHEAD)]
        assert not [batch for batch in had if batch in expected]
        with AsyncDataLoader(make(stack), 7, seed=12, **how) as two:
            next(two)
            two.load_state_dict(state)
            assert json.loads(json.dumps(two.state_dict())) == state
            assert [keys(next(two)) for _ in range(AHEAD)] == expected
            assert two.state_dict()["batches"] == at + AHEAD


@pytest.mark.parametrize("name", LOCAL)
def test_the_batches_after_a_resume_are_those_that_would_have_come(name):
    goes_on(MAKERS[name], 5)


def test_also_from_a_feeder(client):
    for name in MAKERS:
        if name not in LOCAL:
            goes_on(MAKERS[name], 5, client)


@pytest.mark.parametrize("name", LOCAL)
def test_also_with_workers_and_batches_ahead(name):
    goes_on(MAKERS[name], 3, num_workers=2, prefetch=8, worker_type="thread")


def test_also_with_processes_and_the_random_numbers_of_a_transform():
    goes_on(MAKERS["n steps"], 3, num_workers=2, chunk_size=7, transform=noisy)


def noisy(batch, rng):
    return {"x": batch["x"] + rng.random(len(batch["x"]))}


@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "worker_type": "thread"}])
def test_also_on_a_device(how):
    goes_on(MAKERS["a table"], 5, device=FakeBackend(), **how)


@pytest.mark.parametrize("name", ["a table", "columns", "a mixture"])
def test_also_when_another_thread_has_taken_over_the_draws(name, monkeypatch):
    monkeypatch.setattr(source_engine, "DrawCosts", functools.partial(DrawCosts, -1.0))
    goes_on(MAKERS[name], 30)


def test_a_table_that_was_saved_in_the_same_step_goes_on_in_another_process_as_here(tmp_path):
    with table() as one, AsyncDataLoader(one, 7, seed=1) as loader:
        next(loader)
        one.save(tmp_path)
        state = loader.state_dict()
        expected = [keys(next(loader)) for _ in range(AHEAD)]
    with ReplayBuffer.from_checkpoint(tmp_path) as two, AsyncDataLoader(two, 7, seed=1) as loader:
        loader.load_state_dict(state)
        assert [keys(next(loader)) for _ in range(AHEAD)] == expected


def test_a_state_may_be_loaded_before_the_table_has_a_step():
    with table() as one, AsyncDataLoader(one, 7, seed=1) as loader:
        next(loader)
        state = loader.state_dict()
        expected = [keys(next(loader)) for _ in range(AHEAD)]
    two = ReplayBuffer(500, seed=0)
    with two, AsyncDataLoader(two.source(seed=1), 7) as loader:
        loader.load_state_dict(state)
        with two.writer() as writer:
            for x in range(N):
                writer.append(x=float(x), policy_version=x // 100, terminated=x % 37 == 36)
        assert [keys(next(loader)) for _ in range(AHEAD)] == expected


def test_what_has_no_place_to_go_on_from_counts_its_batches_and_loses_no_row():
    queue = ReplayBuffer(500, max_times_sampled=1, seed=0)
    queue.extend(x=np.arange(70.0))
    with queue, AsyncDataLoader(queue, 7, seed=1, num_workers=2, worker_type="thread") as loader:
        state = {"version": 1, "seed": 3, "batches": 40, "source": None}
        loader.load_state_dict(state)
        seen = [x for _ in range(10) for x in next(loader)["x"].tolist()]
        assert sorted(seen) == list(range(70))
        assert loader.state_dict()["batches"] == 50


def test_a_state_of_something_else_is_refused_and_the_loader_goes_on():
    with table() as buffer, AsyncDataLoader(buffer, 7, seed=1) as loader:
        state = loader.state_dict()
        for wrong in ({}, None, {**state, "version": 2}, {**state, "batches": "1"}):
            with pytest.raises(ConfigError, match="no state_dict of an AsyncDataLoader"):
                loader.load_state_dict(wrong)
        for source in ({"function": 1}, {**state["source"], "used": "x"}):
            with pytest.raises(ConfigError, match="does not fit this ReplaySource"):
                loader.load_state_dict({**state, "source": source})
            assert loader.state_dict() == state
        next(loader)
    with pytest.raises(Closed):
        loader.load_state_dict(state)
    with AsyncDataLoader(lambda n: {"x": np.zeros(n)}, 7) as other:
        with pytest.raises(ConfigError, match="make the loader as it was"):
            other.load_state_dict(state)
        next(other)
    made = AsyncDataLoader(Plain(), 7)
    with made, pytest.raises(ConfigError, match="a Plain has none"):
        made.load_state_dict(state)


class Plain:
    """A source without a state."""

    def plan(self, batch_size, patience):
        return Ready({"x": np.zeros(batch_size)})

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError
