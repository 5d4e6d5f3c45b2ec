"""Data sources that raise, block, or give something else than they should; and waits that no thread
could end.
"""

from __future__ import annotations

import threading
import warnings

import pytest
from fault_rig import SLACK_S, first, plain, thread

from async_loader import AsyncDataLoader
from async_loader.errors import (
    JobFailed,
    SchemaError,
    Timeout,
    WouldDeadlock,
)
from async_loader.pipeline import iterator
from async_loader.source import Samples


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


def load(source, workers=0, **settings):
    return AsyncDataLoader(
        source,
        4,
        num_workers=workers,
        multiprocessing_context="fork",
        **{"timeout_s": SLACK_S, **settings},
    )


class Moody:
    """Gives batches, but for the call whose number is ``at``, which does ``what``."""

    def __init__(self, what, at=1):
        self.what, self.at, self.calls = what, at, -1

    def __call__(self, n):
        self.calls += 1
        if self.calls == self.at:
            return self.what(n)
        return [plain(self.calls * n + i) for i in range(n)]


def raising(error):
    def fail(n):
        raise error()

    return fail


def test_a_source_that_raises_fails_one_batch(workers):
    with load(Moody(raising(LookupError)), workers) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(LookupError) as caught:
            next(loader)
        assert caught.traceback[-1].name == "fail"
        assert [first(next(loader)) for _ in range(2)] == [8, 12]


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_source_that_raises_what_would_end_the_loop_silently_fails_one_batch(workers, error):
    with load(Moody(raising(error)), workers) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(JobFailed, match=f"{error.__name__} was raised by"):
            next(loader)
        assert first(next(loader)) == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda n: [plain(i) for i in range(n - 1)], "returned 3 entries, batch_size is 4"),
        (lambda n: [], "returned 0 entries"),
        (lambda n: [plain(i) for i in range(n + 1)], "returned 5 entries"),
        (lambda n: None, "returned NoneType"),
        (lambda n: "abcd", "returned str"),
        (lambda n: 7, "returned int"),
        (lambda n: iter([]), "returned list_iterator"),
        (
            lambda n: [plain(0), lambda: plain(1), plain(2), plain(3)],
            "returned 1 callables and 3 other entries",
        ),
    ],
)
def test_a_source_that_gives_too_few_or_the_wrong_thing_is_told_what_it_should_give(
    workers, given, message
):
    with load(Moody(given), workers) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(SchemaError, match=message) as caught:
            next(loader)
        assert "return batch_size sample dicts" in str(caught.value)
        assert first(next(loader)) == 8


# -- waits -----------------------------------------------------------------------------------------


def test_a_blocked_source_is_named_at_the_timeout_and_the_batch_comes_later(workers):
    entered, let_go = threading.Event(), threading.Event()

    def slow(n):
        entered.set()
        let_go.wait(SLACK_S)
        return [plain(i) for i in range(n)]

    with load(slow, workers, timeout_s=0.3) as loader:
        assert entered.wait(SLACK_S)
        for _ in range(2):
            with pytest.raises(
                Timeout,
                match=r"no batch within 0\.3 s: the source: it has been at work on one batch for",
            ) as caught:
                next(loader)
        assert isinstance(caught.value, TimeoutError)
        let_go.set()
        while True:
            try:
                assert first(next(loader)) == 0
                break
            except Timeout:
                continue


def test_without_a_timeout_the_wait_is_named_once(monkeypatch, workers):
    monkeypatch.setattr(iterator, "_WARN_AFTER_S", 0.2)
    gates = [threading.Event(), threading.Event()]
    passing, entered = iter(gates), threading.Event()

    def slow(n):
        gate = next(passing, None)
        entered.set()
        if gate is not None:
            gate.wait(SLACK_S)
        return [plain(i) for i in range(n)]

    with load(slow, workers, timeout_s=None, prefetch=1) as loader:
        assert entered.wait(SLACK_S)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", RuntimeWarning)
            with thread(next, loader) as result:
                while not seen:
                    threading.Event().wait(0.01)
                gates[0].set()
                first(result())
            with thread(next, loader) as result:
                gates[1].set()
                first(result())
        (warning,) = seen
        assert warning.category is RuntimeWarning
        assert "no batch for 0.2 s: the source: it has been at work on one batch for" in str(
            warning.message
        )
        assert "timeout_s=" in str(warning.message)


class Thirsty:
    """Waits for `fill`, as an empty replay buffer does."""

    def __init__(self):
        from async_loader.lifecycle import EventFd

        self.bell, self.filled = EventFd(), False

    def fill(self):
        self.filled = True
        self.bell.ring()

    def plan(self, batch_size, patience):
        while not self.filled:
            patience.wait(self.bell, "water")
        return Samples([plain(i) for i in range(batch_size)])

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError

    def waiting_for(self):
        return None if self.filled else "the cup is empty"


# pytest-timeout's own thread might add data, for all the loader knows; the signal method has no
# thread.
alone = pytest.mark.timeout(120, method="signal")


@pytest.fixture
def no_strangers(monkeypatch):
    """Threads that libraries started in earlier tests (progress bars, ZeroMQ's collector) are
    not those that are meant here.
    """
    known, everyone = set(threading.enumerate()) - {threading.current_thread()}, threading.enumerate
    monkeypatch.setattr(
        threading, "enumerate", lambda: [one for one in everyone() if one not in known]
    )


@alone
@pytest.mark.usefixtures("no_strangers")
def test_a_wait_that_only_this_thread_could_end_raises_at_once_and_can_be_taken_up_again():
    source = Thirsty()
    with load(source, timeout_s=None) as loader:
        for _ in range(2):
            with pytest.raises(WouldDeadlock, match="the cup is empty, and this thread"):
                next(loader)
        source.fill()
        assert first(next(loader)) == 0


@alone
def test_a_wait_that_another_thread_of_the_user_may_end_is_waited_for():
    source, waiting = Thirsty(), threading.Event()
    with load(source, timeout_s=None) as loader:

        def collector():
            waiting.wait(SLACK_S)
            source.fill()

        with thread(collector):
            source_waits = source.waiting_for

            def waiting_for():
                waiting.set()
                return source_waits()

            source.waiting_for = waiting_for
            assert first(next(loader)) == 0
