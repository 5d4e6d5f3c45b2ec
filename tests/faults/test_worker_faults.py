"""Workers that die, stop, or raise: the learner is told, and the loader goes on."""

from __future__ import annotations

import functools
import os
import signal

import pytest
from fault_rig import (
    SLACK_S,
    Batches,
    Silent,
    block,
    die,
    fail,
    first,
    leave,
    pids,
    plain,
    resume,
    segfault,
    stop_then,
    warned,
    wide,
)
from waiting_rig import until

from async_loader import AsyncDataLoader
from async_loader.errors import Broken, JobFailed, Timeout, WorkerDied
from async_loader.pipeline import iteration


def load(source, **settings):
    settings = {
        "num_workers": 2,
        "chunk_size": 2,
        "multiprocessing_context": "fork",
        "timeout_s": SLACK_S,
        **settings,
    }
    return AsyncDataLoader(source, 4, **settings)


@pytest.mark.parametrize(
    ("fault", "exitcode", "words"),
    [
        (functools.partial(die, signal.SIGKILL), -signal.SIGKILL, "was killed by SIGKILL"),
        (functools.partial(die, signal.SIGABRT), -signal.SIGABRT, "was killed by SIGABRT"),
        (segfault, -signal.SIGSEGV, "was killed by SIGSEGV"),
        (functools.partial(leave, 7), 7, "ended with exit code 7"),
        (functools.partial(leave, 0), 0, "ended with exit code 0"),
    ],
)
def test_a_worker_that_dies_in_a_job_is_named_and_replaced_and_only_its_batch_is_lost(
    fault, exitcode, words
):
    with load(Batches({9: fault})) as loader:
        got, died = [], []
        while len(got) < 5:
            try:
                got.append(first(next(loader)))
            except WorkerDied as error:
                died.append(error)
        assert [first(next(loader)) for _ in range(3)] == [24, 28, 32]
        assert got == [0, 4, 12, 16, 20]
        (error,) = died
        assert error.exitcode == exitcode
        assert words in str(error)
        assert f"pid {error.pid}" in str(error)
        assert "rows 0 to 2 of batch 2" in str(error)
        assert loader.stats().workers_replaced == 1
        assert len(pids(loader)) == 2
        assert error.pid not in pids(loader)


def test_a_worker_killed_while_idle_is_replaced_and_nothing_is_lost():
    with warned() as deaths, load(Batches(), prefetch=2) as loader:
        assert [first(next(loader)) for _ in range(3)] == [0, 4, 8]
        # All tickets are used and nothing is taken, so the workers have nothing to do as soon as
        # these are made.
        until(lambda: loader._engine.iteration.train_queue.depth == 2)
        before = pids(loader)
        os.kill(before[0], signal.SIGKILL)
        deaths.wait()
        assert [first(next(loader)) for _ in range(20)] == list(range(12, 92, 4))
        assert loader.stats().workers_replaced == 1
        assert before[0] not in pids(loader)


# -- stopped ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_worker_is_named_at_the_timeout_and_the_wait_can_be_taken_up_again(told):
    with load(
        Batches({8: functools.partial(stop_then, told.path, plain)}), timeout_s=0.5
    ) as loader:
        pid = told.pid()
        # else one of these may be what is late
        until(lambda: {0, 1} <= set(loader._engine.iteration.train_queue._ready))
        got = []
        for _ in range(2):
            with pytest.raises(  # noqa: PT012
                Timeout,
                match=rf"no batch within 0.5 s: the workers: worker \d \(pid {pid}\) "
                "is at work on rows 0 to 2",
            ):
                while True:
                    got.append(first(next(loader)))
        resume(pid)
        while len(got) < 6:
            try:
                got.append(first(next(loader)))
            except Timeout:  # two busy cores
                continue
        assert got == [0, 4, 8, 12, 16, 20]
        assert loader.stats().workers_replaced == 0


def test_close_meets_its_deadline_when_a_worker_is_stopped(told, caplog, monkeypatch):
    # a moment that the machine stands still is not the source's
    monkeypatch.setattr(iteration, "_TELL_AFTER_S", SLACK_S / 2)
    loader = load(Batches({8: functools.partial(stop_then, told.path, plain)}))
    pid = told.pid()
    first(next(loader))
    loader.close(20.0)
    assert not os.path.exists(f"/proc/{pid}")
    assert not caplog.records


def test_a_stopped_worker_that_is_continued_writes_into_nobodys_batch(told):
    """M4: its batch has failed long ago, and yet the slot must not be given away."""
    jobs = {
        40: functools.partial(stop_then, told.path, wide),
        # One of these may wait behind it in the stopped worker.
        **{i: functools.partial(raise_made, ValueError) for i in (41, 42, 43)},
    }
    with load(Batches(jobs, make=wide), chunk_size=1, in_order=False, prefetch=6) as loader:
        assert [first(next(loader)) for _ in range(6)]  # from now on batches are made in slots
        pid, failed, count = told.pid(), False, 0
        (stopped,) = (h for h in loader._engine.core.pool.handles if h.pid == pid)
        number, part = next(
            item for item in list(stopped.assigned.items()) if item[1].job.seq == 10
        )
        ring, begin = part.job.buffer.ring, part.job.buffer.root.ctypes.data
        assert ring is loader._engine.core.slots.ring
        del part  # the test must not be what keeps the slot
        slot = range(begin, begin + ring.slot_bytes)
        while not failed or count < 3 * ring.count:
            try:
                batch = next(loader)
            except ValueError:
                failed = True
                continue
            assert batch["x"].data_ptr() not in slot
            count += failed
        resume(pid)
        held = []
        while number in stopped.assigned:
            held = [*held[-2:], next(loader)]
        for batch in held:
            first(batch)
        del batch, held
        numbers = [first(next(loader)) for _ in range(10)]
        assert 40 not in numbers


# -- raising ---------------------------------------------------------------------------------------


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("cannot travel")
        self.held = (i for i in ())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_arrives_as_itself_and_the_next_batches_go_on(workers):
    faults = {5: functools.partial(fail, KeyError("no such episode"))}
    with load(Batches(faults), num_workers=workers) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(KeyError, match="no such episode") as caught:
            next(loader)
        assert [first(next(loader)) for _ in range(3)] == [8, 12, 16]
    if workers:
        assert "in fail" in str(caught.value.__cause__)
        assert "raise error" in str(caught.value.__cause__)
        assert any(
            "worker" in note and "rows 0 to 2 of batch 1" in note for note in caught.value.__notes__
        )


@pytest.mark.parametrize(
    ("error", "type_name", "text"),
    [
        (functools.partial(Silent, "no unpickling", 7), "fault_rig.Silent", "no unpickling 7"),
        (Unpicklable, "test_worker_faults.Unpicklable", "cannot travel"),
        (functools.partial(StopIteration, "not the end"), "StopIteration", "not the end"),
        (functools.partial(SystemExit, 3), "SystemExit", "3"),
        (KeyboardInterrupt, "KeyboardInterrupt", ""),
        (GeneratorExit, "GeneratorExit", ""),
    ],
)
def test_what_cannot_be_raised_here_as_it_was_becomes_job_failed(error, type_name, text):
    with load(Batches({5: functools.partial(raise_made, error)})) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(JobFailed) as caught:
            next(loader)
        assert [first(next(loader)) for _ in range(2)] == [8, 12]
    assert caught.value.type_name.endswith(type_name)
    assert text in str(caught.value)
    assert "raise_made" in str(caught.value.__cause__)


def raise_made(make, i):
    raise make()


# -- worker_init_fn --------------------------------------------------------------------------------


def raise_in_init(number):
    raise LookupError(f"worker {number} has no licence")


def test_a_worker_init_fn_that_raises_breaks_the_loader_and_says_why(start_method):
    with load(
        Batches(), worker_init_fn=raise_in_init, multiprocessing_context=start_method
    ) as loader:
        for _ in range(2):
            with pytest.raises(
                Broken, match=r"worker_init_fn failed: LookupError\('worker \d has no licence'\)"
            ) as caught:
                next(loader)
        assert isinstance(caught.value.__cause__, LookupError)
        assert "raise_in_init" in str(caught.value.__cause__.__cause__)


def test_on_error_fatal_breaks_the_loader():
    with load(Batches({5: functools.partial(fail, ValueError("bad"))}), on_error="fatal") as loader:
        assert first(next(loader)) == 0
        with pytest.raises(ValueError, match="bad"):
            next(loader)
        for _ in range(2):
            with pytest.raises(Broken, match="bad"):
                next(loader)


def test_on_error_skip_passes_over_and_counts():
    faults = {
        5: functools.partial(fail, ValueError("bad")),
        9: functools.partial(die, signal.SIGKILL),
    }
    with load(Batches(faults), on_error="skip") as loader:
        assert [first(next(loader)) for _ in range(3)] == [0, 12, 16]
        assert loader.stats().skipped == 2


@pytest.mark.slow
def test_a_worker_killed_from_outside_while_it_holds_a_job(start_method, told):
    with load(
        Batches({5: functools.partial(block, told.path)}), multiprocessing_context=start_method
    ) as loader:
        pid = told.pid()
        os.kill(pid, signal.SIGKILL)
        got = []
        with pytest.raises(WorkerDied) as caught:  # noqa: PT012
            while True:
                got.append(first(next(loader)))
        assert caught.value.pid == pid
        got += [first(next(loader)) for _ in range(3 - len(got))]
        assert got == [0, 8, 12]
