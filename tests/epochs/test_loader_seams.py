"""Where a loader meets what surrounds it: loaders within its datasets, forks, workers that could not be made ready."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from async_loader import DataLoader
from async_loader.compat.gluon.data import DataLoader as GluonLoader
from async_loader.compat.gluon.data.batchify import Stack
from async_loader.epochs.ferry import Ferry
from async_loader.errors import Broken
from async_loader.pipeline.pool import Pool

ROW = 4096


def _read(rows):
    return next(iter(DataLoader(rows, len(rows))))


class Keeping:
    """Keeps, from item 40 on, a batch that was made in the worker, and makes its items of that."""

    def __init__(self, make):
        self._make, self._kept = make, None

    def __len__(self):
        return 120

    def __getitem__(self, i):
        if i < 40:
            return np.full(ROW, i + i % 2, np.float32)
        if self._kept is None:
            self._kept = np.asarray(self._make([np.full(ROW, j, np.float32) for j in range(2)]))
        return self._kept[i % 2] + np.float32(i)

    def __iter__(self):
        return (self[i] for i in range(len(self)))


class Streamed:
    def __init__(self, make):
        self._items = Keeping(make)

    def __iter__(self):
        return iter(self._items)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Keeping(_read), 4, num_workers=1),
        lambda: DataLoader(Streamed(_read), 4, num_workers=1),
        lambda: GluonLoader(Keeping(Stack()), 4, num_workers=1),
    ],
    ids=["core", "stream", "gluon"],
)
def test_a_batch_that_a_dataset_keeps_is_not_in_memory_that_is_used_again(make):
    loader = make()
    assert [int(row[0]) for batch in loader for row in batch] == [i + i % 2 for i in range(120)]
    loader._pool.close()


class Fives:
    def begin(self, here):
        return lambda task: task * 5


def _in_child(what):
    """Its exit status; a child that hangs is ended by the alarm."""
    pid = os.fork()
    if not pid:
        import signal

        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            what()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_a_ferry_says_in_a_forked_child_whose_it_is():
    def ask():
        with pytest.raises(Broken, match="belongs to process"):
            list(ferry)

    with Pool(Fives(), 1, kind="threads") as pool:
        ferry = Ferry(pool.iterate(range(9)), lambda batch: batch)
        assert next(ferry) == 0
        assert _in_child(ask) == 0
        assert list(ferry) == [5 * n for n in range(1, 9)]
        ferry.close()


def test_a_forked_child_drops_an_iteration_whose_lock_was_held():
    held, go = threading.Event(), threading.Event()

    def hold(lock):
        with lock:
            held.set()
            go.wait()

    with Pool(Fives(), 1, kind="threads") as pool:
        iteration = pool.iterate(range(3))
        thread = threading.Thread(target=hold, args=(iteration.queue._lock,))
        thread.start()
        held.wait()
        try:
            status = _in_child(iteration.close)
        finally:
            go.set()
            thread.join()
        assert status == 0
        assert list(iteration) == [0, 5, 10]


def test_no_batch_comes_of_a_worker_that_could_not_be_initialised():
    def fail(worker):
        raise OSError("no such device")

    with DataLoader(list(range(6)), 2, num_workers=1, workers="threads", worker_init_fn=fail) as loader:
        epoch = iter(loader)
        for _ in range(3):
            with pytest.raises(OSError, match="no such device"):
                next(epoch)
        assert list(epoch) == []
