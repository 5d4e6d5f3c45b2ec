"""What a fault leaves whole: descriptors have one owner, a wait without an end is named, a new
definition reaches workers.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import threading

import numpy as np
import pytest
from fault_rig import SLACK_S, Script

from async_loader import AsyncDataLoader, DataLoader, Fifo, ReplayBuffer
from async_loader.errors import OutOfMemory, WouldDeadlock
from async_loader.pipeline import codec
from async_loader.pipeline.workers.worker_pool import WorkerPool
from async_loader.shm import segment as segments
from async_loader.shm.segment import Segment


def opened() -> set[str]:
    gc.collect()  # what tests before this one left in cycles would be closed at any moment
    return set(os.listdir("/proc/self/fd"))


def refuse(*_):
    raise OSError(12, "no room")


def test_a_segment_that_cannot_be_mapped_closes_its_descriptor_once(monkeypatch):
    before = opened()
    with monkeypatch.context() as patch:
        patch.setattr(segments.hugepages, "aligned", refuse)
        with pytest.raises(OutOfMemory) as raised:
            Segment.create(4096, "a test")
    mine = os.open(os.devnull, os.O_RDONLY)  # gets the number that the segment had
    del raised
    os.fstat(mine)
    os.close(mine)
    assert opened() <= before


@pytest.mark.parametrize("kind", ["loader", "epoch"])
def test_workers_whose_thread_cannot_be_started_are_ended(monkeypatch, kind):
    def refused(worker_pool):
        assert worker_pool.handles, "the workers are there already"
        raise RuntimeError("can't start new thread")

    def construct():
        if kind == "loader":
            AsyncDataLoader(lambda n: [dict] * n, 4, num_workers=2, multiprocessing_context="fork")
        else:
            iter(DataLoader([1, 2], 1, num_workers=2, multiprocessing_context="fork", bulk=False))

    before = opened()
    monkeypatch.setattr(WorkerPool, "start", refused)
    with pytest.raises(RuntimeError, match="new thread"):
        construct()
    assert opened() <= before


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def test_descriptors_of_a_pickle_that_cannot_be_loaded_are_closed_once():
    one, two = Segment.create(4096, "a test"), Segment.create(4096, "a test")
    encoded = codec.encode([one, Unreadable(), two])
    before = opened()
    with pytest.raises(ValueError, match="no number"):
        codec.decode(encoded.head, fds=[os.dup(fd) for fd in encoded.fds])
    assert opened() - before == set()
    one.close()
    two.close()


def test_a_name_that_is_not_there_closes_no_descriptor_of_another_file():
    """The frames of the error keep what was loaded, until it is handled; meanwhile the numbers of
    closed descriptors are those of other files.
    """
    main = sys.modules["__main__"]
    gone = type("GoneFromMain", (), {"__module__": "__main__", "__qualname__": "GoneFromMain"})
    main.GoneFromMain = gone
    one = Segment.create(4096, "a test")
    try:
        encoded = codec.encode([one, gone])
    finally:
        del main.GoneFromMain
    mine = -1
    try:
        codec.decode(encoded.head, fds=[os.dup(fd) for fd in encoded.fds])
    except AttributeError:
        mine = os.open(os.devnull, os.O_RDONLY)
    gc.collect()
    os.close(mine)  # EBADF if it was closed already
    one.close()


def test_what_was_unpickled_leads_back_to_no_unpickler():
    """Python 3.11.2 does not look into an unpickler's memo for cycles: whatever was loaded would
    stay.
    """
    one = Segment.create(4096, "a test")
    encoded = codec.encode(one)
    unpicklers = []

    class Seen(codec._Unpickler):
        def load(self):
            unpicklers.append(self.find_class(codec.__name__, "_segment"))
            return super().load()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_Unpickler", Seen)
        codec.decode(encoded.head, fds=[os.dup(fd) for fd in encoded.fds]).close()
    (attach,) = unpicklers
    assert isinstance(attach, functools.partial)
    assert not any(isinstance(part, pickle.Unpickler) for part in attach.args)
    one.close()


@pytest.fixture
def alone(monkeypatch):
    """Threads that libraries started in earlier tests are not those that are meant here."""
    known, everyone = set(threading.enumerate()) - {threading.current_thread()}, threading.enumerate
    monkeypatch.setattr(
        threading, "enumerate", lambda: [one for one in everyone() if one not in known]
    )


# the other method has a thread, which might add data for all the loader knows
@pytest.mark.slow
@pytest.mark.timeout(120, method="signal")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_that_was_drawn_comes_before_the_word_of_a_deadlock(workers):
    for seed in range(10):
        buffer = ReplayBuffer(100, {"x": "int64"}, sampler=Fifo(), max_times_sampled=1, seed=seed)
        buffer.extend(x=np.arange(100))
        taken = []
        with AsyncDataLoader(
            buffer, 10, num_workers=workers, multiprocessing_context="fork", timeout_s=SLACK_S
        ) as loader:
            for _ in range(10):
                taken += next(loader)["x"].tolist()
            for _ in range(2):
                with pytest.raises(WouldDeadlock):
                    next(loader)
        assert taken == list(range(100))
        buffer.close()


def test_a_function_of_the_main_module_that_is_defined_anew_reaches_workers(tmp_path):
    body = """\
        def augment(i):
            return {"x": 1}

        def source(n):
            return [functools.partial(augment, i) for i in range(n)]

        with AsyncDataLoader(source, 4, num_workers=2, multiprocessing_context="fork") as loader:
            next(loader)

            def augment(i):
                return {"x": 2}

            for _ in range(20):
                batch = next(loader)
        say("got", *batch["x"].tolist())
    """
    with Script(tmp_path, body) as script:
        assert script.read("got") == ["2"] * 4
        assert script.end() == (0, "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AsyncDataLoader(lambda n: [], 4, drop_last=True),
            "every batch of a source is whole",
        ),
        (lambda: AsyncDataLoader(lambda n: [], 4, num_worker=2), "did you mean 'num_workers'"),
        (lambda: DataLoader([1], 1, drop_last=True), "say last_batch='drop'"),
        (lambda: DataLoader([1], 1, prefetch_factor=2), "say prefetch"),
        (lambda: DataLoader([1], 1, zzz=2), "DataLoader\\(\\) has no zzz: it takes dataset"),
    ],
)
def test_a_keyword_of_another_loader_is_refused_with_what_to_say(make, message):
    with pytest.raises(TypeError, match=message):
        make()
