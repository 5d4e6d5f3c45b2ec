"""Ctrl-C at any moment: no batch is lost or comes twice, nothing wedges, nothing is left. See
storm_play.py and storm_rig.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import storm_play
from fault_rig import SLACK_S, Batches, first, wide
from storm_rig import count_points, some_points, strike

from async_loader import AsyncDataLoader, DataLoader
from async_loader.interrupts import SignalsAllowed, SignalsDeferred, held_back
from async_loader.source import Ready


def test_signals_that_come_while_they_are_held_back_are_handled_at_the_end():
    done = []

    def section():
        with SignalsDeferred():
            signal.raise_signal(signal.SIGINT)
            with SignalsDeferred():
                signal.raise_signal(signal.SIGINT)
                assert held_back()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        section()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_held_back_also_if_another_thread_gets_it():
    sent = threading.Event()

    def send():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        sent.set()

    done = []

    def section():
        with SignalsDeferred():
            threading.Thread(target=send).start()
            assert sent.wait(SLACK_S)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        section()
    assert done == ["all of it"]


def test_waits_within_let_signals_through_once_and_what_follows_is_held_back_again():
    caught = []
    with SignalsDeferred():
        try:
            with SignalsAllowed():
                assert not held_back()
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            caught.append(held_back())
    assert caught == [True]


def test_other_handlers_of_the_program_are_held_back_and_run_too():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with SignalsDeferred():
            signal.raise_signal(signal.SIGUSR1)
            assert not seen
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def take(loader, into):
    """What `next` has returned is the caller's, whatever is struck behind it."""
    for batch in loader:
        into.append(batch)
        return


@pytest.mark.parametrize(("workers", "draws"), [(0, "thread"), (2, "thread"), (0, "caller")])
def test_whichever_point_of_next_is_struck_the_following_call_gives_the_same_batch(workers, draws):
    taken = []
    with AsyncDataLoader(
        Batches(make=wide),
        4,
        num_workers=workers,
        multiprocessing_context="fork",
        timeout_s=SLACK_S,
    ) as loader:
        take(loader, taken)
        while draws == "caller" and not loader._engine.iteration.producer.parked:
            loader._engine.iteration.draw_in("caller")
            take(loader, taken)
        total = max(count_points(lambda: take(loader, taken)) for _ in range(3))
        for at in some_points(total, 80 if draws == "thread" else 500):
            strike(lambda: take(loader, taken), at)
            assert loader.stats().interrupted in (0, 1)
        take(loader, taken)
        assert loader.stats().interrupted == 0
        numbers = [first(batch) for batch in taken]
    assert numbers == list(range(0, 4 * len(taken), 4))


class Leased:
    """Batches of a queue, with a lease each: what became of them is known."""

    def __init__(self):
        self.became = []

    def plan(self, batch_size, patience):
        return self.draw_now(batch_size)

    def draw_now(self, batch_size):
        number = len(self.became)
        self.became.append("planned")
        return Ready({"i": np.full(batch_size, number)}, True, number)

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError

    def hand_out(self, lease):
        if self.became[lease] == "planned":
            self.became[lease] = "handed out"
        return self.became[lease] == "handed out"

    def settle(self, lease):
        if self.became[lease] == "handed out":
            self.became[lease] = "used"

    def release(self, timeout_s):
        pass


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("draws", ["caller", "thread"])
def test_whichever_point_of_next_is_struck_a_leased_batch_is_used_also_if_its_function_failed(
    draws, on_error
):
    def odd(batch):
        if batch["i"][0] % 3 == 1:
            raise LookupError
        return batch

    source, taken = Leased(), []
    with AsyncDataLoader(source, 4, transform=odd, on_error=on_error, timeout_s=SLACK_S) as loader:

        def ask():
            with contextlib.suppress(LookupError):
                take(loader, taken)

        ask()
        loader._engine.iteration.draw_in(draws)
        total = max(count_points(ask) for _ in range(6))
        for at in some_points(total, 200):
            strike(ask, at)
        ask()
        ask()
        ask()
        numbers = [int(batch["i"][0]) for batch in taken]
        assert numbers == [n for n in range(numbers[-1] + 1) if n % 3 != 1]
        assert set(source.became[: numbers[-1]]) == {"used"}


@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "thread"), (2, "process")])
def test_whichever_point_of_an_epoch_is_struck_each_batch_comes_once(workers, kind):
    taken = []
    with DataLoader(
        list(range(800)),
        4,
        num_workers=workers,
        worker_type=kind,
        multiprocessing_context="fork",
        timeout_s=SLACK_S,
        bulk=False,
    ) as loader:
        epoch = iter(loader)
        take(epoch, taken)
        total = max(count_points(lambda: take(epoch, taken)) for _ in range(3))
        for at in some_points(total, 100):
            strike(lambda: take(epoch, taken), at)
            assert loader.state_dict()["yielded"] == len(taken)
        taken += epoch
    assert [int(row) for batch in taken for row in batch] == list(range(800))


def test_a_sampler_that_a_signal_ended_is_not_taken_for_the_end_of_the_epoch():
    class Sampler:
        def __iter__(self):
            for i in range(100):
                if i == 8:
                    signal.raise_signal(signal.SIGINT)
                yield i

    with DataLoader(list(range(100)), 4, sampler=Sampler(), bulk=False) as loader:
        epoch = iter(loader)
        got = [next(epoch).tolist(), next(epoch).tolist()]
        with pytest.raises(KeyboardInterrupt):
            next(epoch)
        with pytest.raises(Exception, match="begin another"):
            next(epoch)
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_storm_of_real_signals_wedges_nothing_loses_nothing_and_leaves_nothing():
    script = Path(storm_play.__file__)
    command = [sys.executable, "-X", "faulthandler", str(script), "7", "200"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["signals"] == 200
    assert not seen["processes left"] + seen["descriptors left"] + seen["threads left"], seen
