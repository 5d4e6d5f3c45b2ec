"""close(), and every way of doing without it: nothing hangs and nothing is left."""

from __future__ import annotations

import functools
import gc
import os
import re
import select
import threading
import time

import pytest
from fault_rig import SLACK_S, Batches, Script, block, first, plain, thread, wide
from waiting_rig import until

from async_loader import END, AsyncDataLoader, DataLoader
from async_loader.errors import Closed
from async_loader.pipeline import iteration
from async_loader.pipeline.workers import worker_pool
from async_loader.pipeline.workers.worker_handle import WorkerHandle


def load(source=None, **settings):
    settings = {
        "num_workers": 2,
        "chunk_size": 2,
        "multiprocessing_context": "fork",
        "timeout_s": SLACK_S,
        **settings,
    }
    return AsyncDataLoader(source or Batches(), 4, **settings)


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


@pytest.mark.parametrize("make", [plain, wide])
def test_close_when_the_consumer_stopped_pulling_and_all_queues_are_full(
    workers, make, start_method
):
    loader = load(
        Batches(make=make), num_workers=workers, multiprocessing_context=start_method, prefetch=3
    )
    first(next(loader))
    until(lambda: loader._engine.iteration.train_queue.depth == 3)
    loader.close()
    ring = loader._engine.core.slots.ring
    assert ring is None or ring.free == ring.count


def test_after_close_next_is_the_end(workers):
    loader = load(num_workers=workers)
    next(loader)
    assert not loader.end_flag
    loader.close()
    assert loader.end_flag
    assert list(loader) == []
    with pytest.raises(StopIteration):
        next(loader)


def test_close_from_another_thread_ends_a_next_that_waits_for_a_blocked_source():
    entered, let_go = threading.Event(), threading.Event()

    def source(n):
        entered.set()
        let_go.wait(SLACK_S)
        return END

    loader = load(source, num_workers=0)
    entered.wait(SLACK_S)
    with thread(next, loader) as result:
        loader.close(0.1)
        assert isinstance(result(), StopIteration)
    let_go.set()


def test_close_meets_its_deadline_while_workers_are_busy_and_kills_them(told, caplog, monkeypatch):
    # a moment that the machine stands still is not the source's
    monkeypatch.setattr(iteration, "_TELL_AFTER_S", SLACK_S / 2)
    loader = load(Batches({0: functools.partial(block, told.path)}))
    pid = told.pid()
    loader.close(SLACK_S)
    assert not os.path.exists(f"/proc/{pid}")
    assert not caplog.records


class Counted:
    """A dataset, and jobs, that count what began and what ended; they wait for the gate first."""

    def __init__(self):
        self.begun, self.ended, self.gate = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3))

    def __len__(self):
        return 2 * MANY

    def __getitem__(self, i):
        os.eventfd_write(self.begun, 1)
        select.select([self.gate], [], [])
        time.sleep(0.001)
        os.eventfd_write(self.ended, 1)
        return i

    def jobs(self, batch_size):
        return [functools.partial(self.__getitem__, i) for i in range(batch_size)]


MANY = 20_000
"""Items of a millisecond each: a worker that finished them would take 20 seconds."""


def _of_jobs(counted, kind, workers):
    options = {"chunk_size": MANY, "worker_type": kind, "prefetch": 1}
    return AsyncDataLoader(counted.jobs, MANY, num_workers=workers, **options)


def _of_items(counted, kind, workers):
    return DataLoader(counted, MANY, num_workers=workers, worker_type=kind, prefetch=1)


@pytest.mark.parametrize(
    ("make", "kind", "workers"),
    [
        (_of_jobs, "process", 2),
        (_of_jobs, "thread", 2),
        (_of_jobs, "process", 0),
        (_of_items, "process", 2),
        (_of_items, "thread", 2),
    ],
)
def test_close_waits_for_the_job_at_hand_and_not_for_its_batch(make, kind, workers, monkeypatch):
    monkeypatch.setattr(worker_pool, "_GRACE_S", SLACK_S)
    killed = []
    monkeypatch.setattr(WorkerHandle, "kill", killed.append)
    counted = Counted()
    loader = make(counted, kind, workers)
    with thread(lambda: next(iter(loader), None)) as taken:
        assert select.select([counted.begun], [], [], SLACK_S)[0]
        with thread(loader.close, SLACK_S) as closed:
            until(lambda: core_of(loader).ending)
            os.eventfd_write(counted.gate, 1)
            closed()
        taken()
    assert not killed
    assert 0 < os.eventfd_read(counted.ended) == os.eventfd_read(counted.begun) < MANY
    for fd in (counted.begun, counted.ended, counted.gate):
        os.close(fd)


def core_of(loader):
    engine = loader._engine
    return engine.core if hasattr(engine, "core") else engine._core


# -- without close ---------------------------------------------------------------------------------


def test_a_dropped_loader_warns_and_leaves_nothing(workers, start_method):
    loader = load(num_workers=workers, multiprocessing_context=start_method)
    first(next(loader))
    with pytest.warns(ResourceWarning, match="dropped without close"):  # noqa: PT031
        del loader
        gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number", "ending", "code"),
    [
        ("fork", 0, "", 0),
        ("fork", 2, "", 0),
        ("spawn", 2, "", 0),
        ("forkserver", 2, "", 0),
        ("fork", 2, "sys.exit(3)", 3),
    ],
)
def test_the_interpreter_ends_cleanly_without_close(tmp_path, ending, code, method, number):
    body = f"""\
        if __name__ == "__main__":
            loader = AsyncDataLoader(Batches(make=wide), 4, num_workers={number},
                    multiprocessing_context={method!r})
            held = [next(loader) for _ in range(5)]
            {ending}
    """
    with Script(tmp_path, body, fresh=True) as script:
        assert script.end() == (code, "")
        script.wait_until_gone()
        assert os.listdir(script.tmp) == []


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_close_leaves_a_data_source_that_blocks_behind_and_names_it(workers, caplog, monkeypatch):
    monkeypatch.setattr(iteration, "_TELL_AFTER_S", 0.1)
    entered, let_go = threading.Event(), threading.Event()

    def stubborn_source(n):
        entered.set()
        let_go.wait(SLACK_S)
        raise Closed("let go")

    loader = load(stubborn_source, num_workers=workers)
    assert entered.wait(SLACK_S)
    began = time.monotonic()
    loader.close(3.0)
    assert time.monotonic() - began < SLACK_S / 2
    assert "data source" in caplog.text
    assert "stubborn_source" in caplog.text
    loader.close(3.0)
    assert len(caplog.records) == 2, "once while it waits, once when it gives up, and not again"
    assert re.search("close\\(\\) waits up to [0-3] s more for the data source", caplog.text)
    let_go.set()


def test_close_from_another_thread_ends_a_waiting_next(workers, told):
    loader = load(Batches({0: functools.partial(block, told.path)}), num_workers=2)
    told.pid()
    with thread(next, loader) as result:
        loader.close()
        assert isinstance(result(), StopIteration)
