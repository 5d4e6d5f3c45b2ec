"""A pool of workers: tasks and streams, in processes, threads and inline; errors and deaths
leave it usable.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import threading

import numpy as np
import pytest
import torch

from async_loader.errors import (
    Closed,
    JobFailed,
    Timeout,
    WorkerDied,
)
from async_loader.pipeline.batches import arena
from async_loader.pipeline.engine import Engine
from async_loader.pipeline.workers.work import WorkContext

Point = collections.namedtuple("Point", "x y")
KINDS = ["inline", "thread", "process"]


class Tagged(torch.Tensor):
    """A subclass with an attribute."""


class Numbers:
    """Batches whose values say which task they are of."""

    dataset = "the dataset"

    def begin(self, here: WorkContext):
        def do(task):
            if task == "fail":
                raise KeyError("boom")
            if task == "stop":
                raise StopIteration
            if task == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if task == "where":
                info = torch.utils.data.get_worker_info()
                place = dataclasses.replace(here, ending=None)
                return place, (info.id, info.num_workers, info.seed, info.dataset) if info else None
            if task == "random":
                return torch.rand(1).item(), np.random.rand()
            return np.full(task[1], task[0])

        return do


class Counting:
    """Streams: worker k gives 100 k, 100 k + 1, ..., k + 2 of them."""

    def begin(self, here: WorkContext):
        for i in range(here.worker + 2):
            if here.state == "die" and here.worker == 0 and i == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if here.state == "fail" and i == 1:
                raise ValueError("no more")
            yield 100 * here.worker + i


class Whatever:
    """Returns what it is given as a task, made by a function of this module."""

    def begin(self, here: WorkContext):
        return lambda task: globals()[task]()


class Waiting:
    """Waits until it is let go."""

    def __init__(self) -> None:
        self.begun, self.event = threading.Event(), threading.Event()

    def begin(self, here: WorkContext):
        def do(task):
            self.begun.set()
            return self.event.wait(60) and task

        return do


def tasks(n, size=3):
    return [(i, size) for i in range(n)]


def firsts(batches):
    return [int(batch.flat[0]) for batch in batches]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pool(kind):
    with contextlib.closing(Engine(Numbers(), 2, kind=kind, seed=5)) as pool:
        yield pool


@pytest.mark.parametrize("in_order", [True, False])
def test_every_task_is_done_once(pool, in_order):
    for epoch in range(2):
        found = firsts(pool.iterate(tasks(20, 20_000 * epoch + 1), in_order=in_order))
        assert (found if in_order else sorted(found)) == list(range(20))


def test_an_error_is_its_own_and_the_next_batch_comes(pool, kind):
    iteration = pool.iterate([(0, 1), "fail", (2, 1), "stop", (4, 1)])
    assert firsts([next(iteration)]) == [0]
    with pytest.raises(KeyError, match="boom") as caught:
        next(iteration)
    if kind == "process":
        assert "Numbers.begin" in str(caught.value.__cause__) or "in do" in str(
            caught.value.__cause__
        )
    assert firsts([next(iteration)]) == [2]
    # it would end the learner's loop without a word
    with pytest.raises(JobFailed, match="StopIteration"):
        next(iteration)
    assert firsts(iteration) == [4]
    assert firsts(pool.iterate(tasks(3))) == [0, 1, 2]


def test_tasks_are_read_ahead_and_no_further(kind):
    read = []

    def made():
        for task in tasks(10):
            read.append(task)
            yield task

    with contextlib.closing(Engine(Numbers(), 2, kind=kind, prefetch=3)) as pool:
        iteration = pool.iterate(made())
        assert len(read) == (0 if kind == "inline" else 3)
        next(iteration)
        assert len(read) == (1 if kind == "inline" else 4)


def test_a_stream_that_fails_has_ended_and_others_go_on(kind):
    with contextlib.closing(Engine(Counting(), 2, kind=kind)) as pool:
        iteration, got = pool.streams(state="fail"), []
        while True:
            try:
                got.append(next(iteration))
            except StopIteration:
                break
            except ValueError as error:
                got.append(str(error))
        assert got == ([0, 100, "no more", "no more"] if kind == "process" else [0, "no more"])


def test_a_time_limit_passes_and_nothing_is_lost():
    work = Waiting()
    with contextlib.closing(Engine(work, 1, kind="thread")) as pool:
        iteration = pool.iterate(["a", "b"], timeout_s=0.05)
        assert work.begun.wait(60)
        with pytest.raises(Timeout, match="the workers: thread 0 is at work on batch 0"):
            next(iteration)
        work.event.set()
        iteration._timeout_s = 60
        assert list(iteration) == ["a", "b"]


# -- processes alone -------------------------------------------------------------------------------


@pytest.fixture
def processes():
    with contextlib.closing(Engine(Numbers(), 2, seed=5)) as pool:
        yield pool


def test_a_killed_worker_is_named_and_replaced(caplog):
    with contextlib.closing(Engine(Numbers(), 2)) as pool:
        iteration = pool.iterate([(0, 1), "die", (2, 1), (3, 1)])
        before = [one.pid for one in pool.processes]
        got, died = [], []
        for _ in range(4):
            try:
                got += firsts([next(iteration)])
            except WorkerDied as error:
                died.append(error)
        assert sorted(got) == [0, 2, 3]
        assert died[0].pid in before
        assert died[0].exitcode == -signal.SIGKILL
        assert "SIGKILL while it was at work on batch 1" in str(died[0])
        assert list(iteration) == []
        assert firsts(pool.iterate(tasks(4))) == [0, 1, 2, 3]


def test_a_stream_ends_with_its_worker():
    with contextlib.closing(Engine(Counting(), 2, prefetch=4)) as pool:
        iteration, got = pool.streams(state="die"), []
        while True:
            try:
                got.append(next(iteration))
            except StopIteration:
                break
            except WorkerDied:
                got.append("died")
        assert got.count("died") == 1
        got.remove("died")
        # what it had sent may be lost with it or not
        assert sorted(got) in ([0, 100, 101, 102], [100, 101, 102])
        assert list(pool.streams()) == [0, 100, 1, 101, 102]


def nested():
    return {
        "t": torch.ones(3, 50_000),
        "p": Point(np.arange(4.0), [None, "s", b"b"]),
        "n": 3,
        "e": (),
        "bf": torch.ones(2, dtype=torch.bfloat16),
    }


def subclass():
    tensor = torch.arange(60_000.0).as_subclass(Tagged)
    tensor.label = "x"
    return tensor, tensor


def strided():
    return (
        torch.arange(40_000).reshape(200, 200).t(),
        np.arange(30_000)[::-2],
        torch.zeros(0, 3),
        torch.tensor(2.5),
    )


def made_here():
    out = arena.empty((100, 1000), np.float32)
    out[:] = 1
    return (
        out,
        arena.stack([np.full((2, 2), i) for i in range(5)]),
        arena.stack_tensors([torch.full((9,), i) for i in range(3)]),
    )


def sparse():
    return torch.eye(3).to_sparse()


@pytest.fixture
def whatever():
    with contextlib.closing(Engine(Whatever(), 1)) as pool:
        yield pool


@pytest.mark.parametrize("function", [nested, subclass, strided, made_here, sparse])
def test_batches_of_any_kind_arrive_as_they_were(whatever, function):
    batches = list(whatever.iterate([function.__name__] * 7))  # more than there are slots to lend
    for batch in batches:
        same(batch, function())
    if function is subclass:
        assert batches[0][0] is batches[0][1]
        assert batches[0][0].label == "x"


def same(one, two):
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert bool((one.to_dense() == two.to_dense()).all())
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        same(list(one.values()), list(two.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        assert one == two


def test_a_forked_child_makes_workers_of_its_own():
    # a forked child cannot ask its parent's forkserver for processes
    with contextlib.closing(Engine(Numbers(), 2, context="fork")) as pool:
        iteration = pool.iterate(tasks(3))
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with pytest.raises(Closed, match="belongs to process"):
                    next(iteration)
                code = 0 if firsts(pool.iterate(tasks(3))) == [0, 1, 2] else 2
                pool.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert firsts(iteration) == [0, 1, 2]
