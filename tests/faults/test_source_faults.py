"""Data sources that raise, block, or give something else than they should; and waits that no thread
could end.
"""

from __future__ import annotations

import contextlib
import threading
import warnings

import numpy as np
import pytest
from fault_rig import SLACK_S, Batches, Script, first, plain, thread, until

from async_loader import END, AsyncDataLoader
from async_loader.errors import (
    AsyncLoaderError,
    Closed,
    JobFailed,
    SchemaError,
    Timeout,
    WouldDeadlock,
)
from async_loader.pipeline import iteration, iterator
from async_loader.source import Ready, Samples


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


def test_a_source_that_is_closed_is_not_the_end(workers):
    with load(Moody(raising(Closed)), workers) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(AsyncLoaderError, match="data source is closed"):
            next(loader)


def test_end_is_the_end_and_stays_it(workers):
    with load(Moody(lambda n: END, at=3), workers) as loader:
        assert [first(b) for b in loader] == [0, 4, 8]
        assert list(loader) == []


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


def test_without_a_timeout_nothing_is_said_while_all_is_well(monkeypatch):
    with load(Batches(last=50), timeout_s=None) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 50


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


class Remote(Thirsty):
    """As a table of a feeder: other processes end the wait, and the caller of next() may draw."""

    def waiting_for(self):
        return None

    def draw_now(self, batch_size):
        if not self.filled:
            return None
        return Ready({"i": np.arange(batch_size), "x": np.zeros((batch_size, 3), np.float32)})


class Drained(Remote):
    """Says itself that its time is over, at the end of the loader's."""

    def plan(self, batch_size, patience):
        with contextlib.suppress(Timeout):
            patience.wait(self.bell, "water")
        raise Timeout("the well holds 1 of 4 cups")


class OfThread(Remote):
    draw_now = None


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (Remote, "the source: it waits for water"),
        (OfThread, "the source: it waits for water"),
        (Drained, "the source: the well holds 1 of 4 cups"),
    ],
    ids=["caller", "thread", "its own words"],
)
def test_a_wait_for_another_process_is_named_with_the_words_of_the_source(source, text):
    with load(source(), timeout_s=0.2) as loader:
        assert (loader.stats().drawing_thread == "caller") == (source is not OfThread)
        for _ in range(2):
            with pytest.raises(Timeout, match=rf"no batch within 0\.2 s: {text}"):
                next(loader)


def test_a_loader_without_workers_names_none():
    entered, let_go = threading.Event(), threading.Event()

    def slow(batch):
        entered.set()
        let_go.wait(SLACK_S)
        return batch

    with load(Batches(), transform=slow, timeout_s=0.2) as loader:
        try:
            assert entered.wait(SLACK_S)
            with pytest.raises(Timeout, match="a batch is being made in the producer thread"):
                next(loader)
        finally:
            let_go.set()


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


@alone
@pytest.mark.usefixtures("no_strangers")
def test_a_thread_that_ends_the_wait_and_ends_itself_while_that_is_looked_into_is_no_deadlock():
    source, asked = Thirsty(), []
    with load(source, timeout_s=None) as loader:
        until(lambda: loader._engine.iteration.patience.waiting)

        def fill():
            source.filled = True

        def waiting_for():
            asked.append(Thirsty.waiting_for(source))
            if len(asked) == 1:
                # it has ended behind the block, and the producer does not know yet
                with thread(fill):
                    return asked[0]
            source.bell.ring()
            return asked[-1]

        source.waiting_for = waiting_for
        assert first(next(loader)) == 0
    assert asked[:2] == ["the cup is empty", None]


@pytest.mark.slow
def test_an_empty_replay_buffer_that_this_thread_would_have_to_fill(tmp_path):
    body = """\
        from async_loader import ReplayBuffer
        from async_loader.errors import WouldDeadlock

        for workers in (0, 2):
            buffer = ReplayBuffer(100)
            with AsyncDataLoader(buffer, 4, num_workers=workers,
                    multiprocessing_context="fork") as loader:
                for _ in range(2):
                    try:
                        next(loader)
                    except WouldDeadlock as error:
                        say(error)
                for i in range(10):
                    buffer.add(x=np.float32(i))
                say("got", len(next(loader)["x"]))

            buffer = ReplayBuffer(100)
            with AsyncDataLoader(buffer, 4, num_workers=workers,
                    multiprocessing_context="fork") as loader:
                entered = threading.Event()

                def collect():
                    entered.wait()
                    for i in range(10):
                        buffer.add(x=np.float32(i))

                collector = threading.Thread(target=collect)
                collector.start()
                entered.set()
                say("got", len(next(loader)["x"]))
                collector.join()
    """
    with Script(tmp_path, body) as script:
        for _ in range(2):
            for _ in range(2):
                assert " ".join(script.read("steps:")).startswith(
                    "the replay buffer holds 0 of the 1"
                )
            assert script.read("got") == ["4"]
            assert script.read("got") == ["4"]
        assert script.end() == (0, "")


def test_closing_a_loader_whose_source_waits_through_patience_is_quick(caplog, monkeypatch):
    # a moment that the machine stands still is not the source's
    monkeypatch.setattr(iteration, "_TELL_AFTER_S", SLACK_S / 2)
    source = Thirsty()
    loader = load(source)
    with thread(next, loader) as result:
        loader.close(SLACK_S)
        assert isinstance(result(), StopIteration)
    assert not caplog.records
