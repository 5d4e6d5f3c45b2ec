"""An iteration whose tasks the caller draws and does, and that changes over while it runs."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting_rig import LIMIT_S, until

from async_loader import END, AsyncDataLoader, DataLoader, ReplayBuffer
from async_loader.errors import ConfigError, Timeout, WouldDeadlock


class Numbers:
    """Single jobs in their order. ``threads`` are those that drew, ``ran`` the numbers whose job
    ran.
    """

    def __init__(
        self, count: int | None = None, faults: dict[int, BaseException] | None = None
    ) -> None:
        self.left = iter(itertools.count() if count is None else range(count))
        self.faults = faults or {}
        self.threads: list[int] = []

    def __call__(self, size):
        number = next(self.left, None)
        self.threads.append(threading.get_ident())
        return END if number is None else [lambda: self.job(number)]

    def job(self, number):
        fault = self.faults.pop(number, None)
        if fault is not None:
            raise fault
        return {"x": number}


def loader_of(source, **settings) -> AsyncDataLoader:
    return AsyncDataLoader(source, 1, **{"timeout_s": LIMIT_S, **settings})


def changed(loader: AsyncDataLoader, where: str) -> None:
    """Change over, and wait until it is done."""
    loader._engine.iteration.draw_in(where)
    parked = where == "caller"
    # what is under way is to be taken first
    while loader._engine.iteration.producer.parked != parked:
        next(loader)


def test_the_caller_draws_and_does_the_tasks():
    source = Numbers()
    with loader_of(source) as loader:
        changed(loader, "caller")
        source.threads.clear()
        taken = [int(next(loader)["x"]) for _ in range(20)]
        assert taken == list(range(taken[0], taken[0] + 20))
        assert set(source.threads) <= {threading.get_ident()}
        assert len(source.threads) in (19, 20)  # none ahead
        changed(loader, "thread")
        until(lambda: source.threads[-1] != threading.get_ident())


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 4), st.booleans())
def test_no_batch_is_lost_or_repeated_by_changes_at_any_moment(seed, prefetch, beside):
    """In half of the runs the consumer's thread changes over before each `next`, in half another
    thread at random.
    """
    chance, count, over = random.Random(seed), 300, threading.Event()
    with loader_of(Numbers(count), prefetch=prefetch) as loader:
        iteration = loader._engine.iteration

        def change():
            where = ["caller", "thread"]
            for turn in range(100):
                iteration.draw_in(where[turn % 2])
                if over.wait(chance.random() * 0.001):
                    return

        other = threading.Thread(target=change)
        if beside:
            other.start()
        taken = []
        for batch in loader:
            taken.append(int(batch["x"]))
            if not beside:
                iteration.draw_in(chance.choice(["caller", "thread"]))
        over.set()
        if beside:
            other.join()
    assert taken == list(range(count))


def test_what_a_signal_interrupts_is_done_again():
    faults = {number: KeyboardInterrupt() for number in (3, 9, 10)}
    source = Numbers(faults=faults)
    with loader_of(source, prefetch=1) as loader:
        iteration = loader._engine.iteration
        iteration.draw_in("caller")
        until(lambda: iteration.producer.parked or iteration.train_queue.depth)
        taken = []
        while len(taken) < 20:
            try:
                taken.append(int(next(loader)["x"]))
            except KeyboardInterrupt:
                assert faults.keys() < {3, 9, 10}
        assert (taken, faults) == (list(range(20)), {})


def test_an_error_of_a_task_is_raised_once_and_the_next_call_goes_on():
    with loader_of(Numbers(faults={9: LookupError("no ninth")})) as loader:
        changed(loader, "caller")
        taken = []
        with pytest.raises(LookupError, match="no ninth"):  # noqa: PT012
            while True:
                taken.append(int(next(loader)["x"]))
        assert (taken[-1], int(next(loader)["x"])) == (8, 10)


def test_a_wait_of_the_caller_has_an_end_and_is_refused_where_it_would_have_none():
    with (
        ReplayBuffer(100, {"x": "int64"}) as buffer,
        AsyncDataLoader(buffer, 4, timeout_s=LIMIT_S) as loader,
    ):
        buffer.extend(x=np.arange(50))
        changed(loader, "caller")
        buffer.clear()
        loader._batches._timeout_s = 0.2
        with pytest.raises((Timeout, WouldDeadlock)):  # noqa: PT012, what was made before the change comes first
            for _ in range(9):
                next(loader)
        buffer.extend(x=np.arange(50))
        loader._batches._timeout_s = LIMIT_S
        assert len(next(loader)["x"]) == 4


def test_a_parked_producer_ends_with_the_loader():
    loader = loader_of(Numbers())
    changed(loader, "caller")
    loader.close()
    assert not loader._engine.iteration.producer._thread.is_alive()
    with pytest.raises(StopIteration):
        next(loader)


def test_workers_and_iterables_do_not_change_over():
    with (
        loader_of(Numbers(), num_workers=2) as loader,
        pytest.raises(ConfigError, match="in one thread"),
    ):
        loader._engine.iteration.draw_in("caller")
    with DataLoader(range(4), 2) as loader, pytest.raises(ConfigError, match="in one thread"):
        iter(loader)._iteration._iteration.draw_in("caller")
