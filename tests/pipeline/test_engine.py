"""A pool of workers: tasks and streams, in processes, threads and inline; errors and deaths
leave it usable.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
import torch

from async_loader.errors import (
    CannotSend,
    Closed,
    ConfigError,
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


class Failing:
    def begin(self, here: WorkContext):
        raise OSError("no dataset here")


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
    with Engine(Numbers(), 2, kind=kind, seed=5) as pool:
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


def test_iterations_share_the_workers(pool):
    outer = pool.iterate(tasks(6))
    assert firsts([next(outer)]) == [0]
    abandoned = pool.iterate([(50, 1)] * 20)
    next(abandoned)
    del abandoned
    assert [firsts(pool.iterate(tasks(4))) for _ in outer] == [[0, 1, 2, 3]] * 5


def test_an_iteration_that_is_closed_ends(pool):
    iteration = pool.iterate(tasks(9))
    next(iteration)
    iteration.close()
    iteration.close()
    assert list(iteration) == []
    assert not iteration.exhausted
    assert iteration.yielded == 1


def test_what_makes_the_tasks_may_fail_in_its_turn(pool):
    def made():
        yield (0, 1)
        yield (1, 1)
        raise LookupError("the sampler")

    iteration = pool.iterate(made())
    assert firsts([next(iteration), next(iteration)]) == [0, 1]
    with pytest.raises(LookupError, match="the sampler"):
        next(iteration)
    assert list(iteration) == []


def test_tasks_are_read_ahead_and_no_further(kind):
    read = []

    def made():
        for task in tasks(10):
            read.append(task)
            yield task

    with Engine(Numbers(), 2, kind=kind, prefetch=3) as pool:
        iteration = pool.iterate(made())
        assert len(read) == (0 if kind == "inline" else 3)
        next(iteration)
        assert len(read) == (1 if kind == "inline" else 4)


def test_a_pool_that_is_closed_says_so(pool):
    iteration = pool.iterate(tasks(3))
    pool.close()
    pool.close()
    assert list(iteration) == []
    with pytest.raises(Closed):
        pool.iterate(tasks(3))


def test_an_iteration_outlives_the_pool_that_is_dropped(kind):
    iteration = Engine(Numbers(), 2, kind=kind).iterate(tasks(8))
    gc.collect()
    assert firsts(iteration) == list(range(8))


def test_streams_take_turns(kind):
    with Engine(Counting(), 2, kind=kind) as pool:
        for _ in range(2):
            assert list(pool.streams()) == ([0, 100, 1, 101, 102] if kind == "process" else [0, 1])


def test_a_stream_that_fails_has_ended_and_others_go_on(kind):
    with Engine(Counting(), 2, kind=kind) as pool:
        iteration, got = pool.streams(state="fail"), []
        while True:
            try:
                got.append(next(iteration))
            except StopIteration:
                break
            except ValueError as error:
                got.append(str(error))
        assert got == ([0, 100, "no more", "no more"] if kind == "process" else [0, "no more"])


def test_work_that_cannot_begin_fails_its_tasks(kind):
    with Engine(Failing(), 2, kind=kind) as pool:
        iteration = pool.iterate(tasks(2))
        for _ in range(2):
            with pytest.raises(OSError, match="no dataset here"):
                next(iteration)
        assert list(iteration) == []


def test_a_time_limit_passes_and_nothing_is_lost():
    work = Waiting()
    with Engine(work, 1, kind="thread") as pool:
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
    with Engine(Numbers(), 2, seed=5) as pool:
        yield pool


def test_a_work_knows_where_it_is_and_torch_does_too(processes):
    places = list(processes.iterate(["where"] * 4, state={"epoch": 7}, seed=40, static=True))
    for n, (here, info) in enumerate(places):
        assert (here.worker, here.workers, here.kind, here.state, here.seed) == (
            n % 2,
            2,
            "process",
            {"epoch": 7},
            40 + n % 2,
        )
        assert info == (n % 2, 2, 40 + n % 2, "the dataset")
    assert torch.utils.data.get_worker_info() is None


def test_the_same_seed_gives_the_same_numbers_in_every_worker(processes):
    one, two = (list(processes.iterate(["random"] * 8, seed=3, in_order=True)) for _ in range(2))
    assert one == two
    assert len(set(one)) == 8
    assert list(processes.iterate(["random"] * 5, seed=3, first=3)) == one[3:]
    assert list(processes.iterate(["random"] * 8, seed=4)) != one


def test_seeds_of_workers_are_those_of_torch():
    class Draws(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.initial_seed(), torch.rand(1).item(), np.random.rand()

    torch.manual_seed(9)
    theirs = list(
        torch.utils.data.DataLoader(
            Draws(), batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
    )
    base = theirs[0][0]

    class Work:
        def begin(self, here):
            return lambda task: (torch.initial_seed(), torch.rand(1).item(), np.random.rand())

    with Engine(Work(), 2, seeding="iteration") as pool:
        assert list(pool.iterate([0, 1], seed=base, static=True)) == [tuple(x) for x in theirs]


def test_a_killed_worker_is_named_and_replaced(caplog):
    with Engine(Numbers(), 2) as pool:
        iteration, before = pool.iterate([(0, 1), "die", (2, 1), (3, 1)]), pool.pids
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
    with Engine(Counting(), 2, prefetch=4) as pool:
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


def test_a_stream_whose_worker_died_between_two_batches_says_so():
    with Engine(Counting(), 1, prefetch=1) as pool:
        iteration = pool.streams(state="slow")
        assert next(iteration) == 0
        assert pool._core.pool.handles[0].iterations
        (victim,) = pool.pids
        assert victim > 0
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collections.deque(iteration, maxlen=0)
        assert list(iteration) == []


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
    with Engine(Whatever(), 1) as pool:
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


def test_a_task_that_cannot_travel_fails_alone(processes):
    iteration = processes.iterate([(0, 1), threading.Lock(), (2, 1)])
    next(iteration)
    with pytest.raises(CannotSend, match="lock"):
        next(iteration)
    assert firsts(iteration) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn"])
def test_workers_that_are_not_forked_are_sent_the_work(method):
    offset = 5

    class Local:
        def begin(self, here):
            return lambda task: task + offset + here.state

    with Engine(Local(), 1, context=method) as pool:
        assert list(pool.iterate(range(3), state=10)) == [15, 16, 17]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_is_sent_by_value_may_hold_what_processes_share(method):
    context = multiprocessing.get_context(method)
    # locks and connections, which travel to a process that is being started alone
    numbers = context.Queue()

    class Local:
        def begin(self, here):
            return lambda task: task + numbers.get(timeout=60)

    for number in (10, 20):
        numbers.put(number)
    with Engine(Local(), 1, context=method) as pool:
        assert list(pool.iterate([1, 2])) == [11, 22]
    numbers.close()
    numbers.join_thread()


def test_a_work_that_cannot_travel_is_refused_before_anything_starts():
    work = Numbers()
    work.lock = threading.Lock()
    with (
        Engine(work, 1, context="spawn") as pool,
        pytest.raises(CannotSend, match=r"Numbers.*lock.*use multiprocessing_context=\"fork\""),
    ):
        pool.start()


def test_a_forked_child_makes_workers_of_its_own():
    # a forked child cannot ask its parent's forkserver for processes
    with Engine(Numbers(), 2, context="fork") as pool:
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


def test_arguments_that_cannot_work_are_refused():
    for wrong in (
        {"kind": "fibres"},
        {"seeding": "never"},
        {"prefetch": -1},
        {"workers": -1},
        {"context": "clone"},
    ):
        with pytest.raises(ConfigError):
            Engine(Numbers(), **{"workers": 1, **wrong})
    with pytest.raises(TypeError, match="cannot be pickled"):
        __import__("pickle").dumps(Engine(Numbers()))
