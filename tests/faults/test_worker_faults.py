"""Workers that die, stop, or raise: the learner is told, and the loader goes on."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal

import pytest
from fault_rig import (
    SLACK_S,
    Batches,
    Loud,
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
    until,
    warned,
    wide,
)

from async_loader import AsyncDataLoader
from async_loader.errors import Broken, JobFailed, Timeout, WorkerDied
from async_loader.lifecycle import readable
from async_loader.pipeline import iteration
from async_loader.pipeline.workers import worker_main, worker_pool


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


def test_a_death_overtakes_finished_batches():
    with (
        warned() as deaths,
        load(Batches({13: functools.partial(die, signal.SIGKILL)}), prefetch=6) as loader,
    ):
        deaths.wait()
        with pytest.raises(WorkerDied, match="batch 3"):
            next(loader)
        assert [first(next(loader)) for _ in range(4)] == [0, 4, 8, 16]


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


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_workers_that_have_ended_can_still_be_asked_while_another_thread_starts_a_process(
    start_method,
):
    with load(Batches({}), multiprocessing_context=start_method) as loader:
        next(loader)
        workers = multiprocessing.active_children()
    asked = [worker._popen for worker in workers if worker.name.startswith("async-loader-worker")]
    assert len(asked) == 2
    assert None not in asked, (
        "Process.start() asks all that were running when it began, also those that end meanwhile"
    )
    assert not set(workers) & set(multiprocessing.active_children())


def test_what_a_worker_had_finished_before_it_died_is_not_lost(told):
    """It dies with a part that it has not read yet: the kernel reports that ahead of the results
    that are still there.
    """
    jobs = {
        0: functools.partial(stop_then, told.path, plain),
        4: functools.partial(stop_then, told.path, last_words),
    }
    with load(Batches(jobs, last=6), chunk_size=4, prefetch=4) as loader:
        stopped = {told.pid(), told.pid()}  # both, so that neither takes all that is left
        handles = loader._engine.core.pool.handles
        until(lambda: [len(h.assigned) for h in handles] == [2, 2])
        (dying,) = (h for h in handles if next(iter(h.assigned.values())).job.seq == 1)
        with loader._engine.core.pool._lock:  # the crew reads nothing until it is all over
            resume(dying.pid)
            until(lambda: readable([dying.death_fd], 0.0))
        (other,) = stopped - {dying.pid}
        resume(other)
        got, died = [], []
        while len(got) + len(died) < 6:
            try:
                got.append(first(next(loader)))
            except WorkerDied as error:
                died.append(error)
        (error,) = died
        assert error.exitcode == 3
        assert 4 in got


def last_words(i):
    """Let the worker send this result, and end instead of reading what it is to do next."""
    from async_loader.shm.fd_channel import FdChannel

    FdChannel.receive = lambda self: os._exit(3)
    return plain(i)


@pytest.mark.slow
def test_a_replacement_that_hangs_before_its_first_line_is_replaced_too(
    monkeypatch, told, tmp_path
):
    """As a fork does that copied a lock of the dynamic linker while another thread held it."""
    drop_signals = worker_main.drop_signals

    def hang_once(blocked):
        try:
            os.close(os.open(tmp_path / "hung", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            drop_signals(blocked)
        else:
            signal.pause()

    with load(Batches({5: functools.partial(block, told.path)})) as loader:
        pid = told.pid()
        monkeypatch.setattr(worker_main, "drop_signals", hang_once)
        monkeypatch.setattr(worker_pool, "_START_S", 2.0)
        with warned() as deaths:
            os.kill(pid, signal.SIGKILL)
            deaths.wait(2)
        with pytest.raises(WorkerDied):
            next(loader)
        assert [first(next(loader)) for _ in range(5)] == [0, 8, 12, 16, 20]
        assert (tmp_path / "hung").exists()


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


def test_the_other_workers_go_on_while_one_is_stopped(told):
    source = Batches({8: functools.partial(stop_then, told.path, plain)}, last=40)
    with load(source, in_order=False, prefetch=6) as loader:
        pid = told.pid()
        got = [first(next(loader)) for _ in range(20)]
        assert 8 not in got
        resume(pid)
        got += map(first, loader)
        assert sorted(got) == list(range(0, 160, 4))


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
        (functools.partial(Loud, "no unpickling", 7), "fault_rig.Loud", "no unpickling"),
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


@pytest.mark.parametrize("workers", [0, 2])
def test_closed_raised_by_a_job_is_not_the_end_either(workers):
    from async_loader.errors import Closed

    with load(
        Batches({5: functools.partial(fail, Closed("some table"))}), num_workers=workers
    ) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(JobFailed, match="some table"):
            next(loader)
        assert first(next(loader)) == 8


class Poisoned:
    """Pickles in the worker, and raises when the learner's process loads it."""

    def __reduce__(self):
        return _explode, ()


def _explode():
    raise StopIteration("while loading")


def test_a_sample_that_does_not_unpickle_fails_its_batch_only():
    with load(Batches({5: lambda i: {"x": Poisoned(), "i": i}})) as loader:
        assert first(next(loader)) == 0
        with pytest.raises(JobFailed, match="while loading") as caught:
            next(loader)
        assert "returned for rows 0 to 2 of batch 1" in caught.value.__cause__.__notes__[0]
        assert first(next(loader)) == 8


def test_too_little_memory_for_a_result_is_this_batchs_failure():
    from async_loader.errors import OutOfMemory

    def starved(i):
        from async_loader.shm import segment

        segment.available_bytes = lambda: 0
        return {"x": bytearray(10), "v": [np_ones()]}

    def np_ones():
        import numpy

        return numpy.ones(100_000)

    with load(Batches({5: starved}), collate_fn=list) as loader:
        assert [s["i"] for s in next(loader)] == [0, 1, 2, 3]
        with pytest.raises(OutOfMemory):
            next(loader)


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


def test_a_worker_init_fn_that_kills_its_process_breaks_the_loader_after_some_tries():
    with load(Batches(), worker_init_fn=functools.partial(die, signal.SIGKILL)) as loader:
        with pytest.raises(Broken, match="was killed by SIGKILL before it was ready"):
            next(loader)


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


def test_on_error_skip_is_bounded():
    class Always(dict):
        def get(self, number, default):
            return functools.partial(fail, ValueError("always"))

    with load(Batches(Always()), on_error="skip", num_workers=0) as loader:
        with pytest.raises(ValueError, match="always") as caught:
            next(loader)
        assert "100 batches in a row" in caught.value.__notes__[-1]
        assert loader.stats().skipped == 100
