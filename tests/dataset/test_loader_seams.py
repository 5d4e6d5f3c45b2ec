"""Where a loader meets what surrounds it: loaders within its datasets, forks, workers that could
not be made ready.
"""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import pytest
from fake_device import FakeBackend

from async_loader import DataLoader
from async_loader.compat.gluon.data import DataLoader as GluonLoader
from async_loader.compat.gluon.data.batchify import Stack
from async_loader.compat.torch import StatefulDataLoader
from async_loader.pipeline.engine import Engine

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
    loader._engine.close()


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


def test_a_forked_child_drops_an_iteration_whose_lock_was_held():
    held, go = threading.Event(), threading.Event()

    def hold(lock):
        with lock:
            held.set()
            go.wait()

    with contextlib.closing(Engine(Fives(), 1, kind="thread")) as pool:
        iteration = pool.iterate(range(3))
        thread = threading.Thread(target=hold, args=(iteration._iteration.train_queue._lock,))
        thread.start()
        held.wait()
        try:
            status = _in_child(iteration.close)
        finally:
            go.set()
            thread.join()
        assert status == 0
        assert list(iteration) == [0, 5, 10]


class Holed:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == 5:
            raise LookupError("item 5")
        return i


class Counting:
    """A sampler with a state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 20:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def __len__(self):
        return 20

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("after", [2, 3, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Holed(), 2),
        lambda: DataLoader(Holed(), 2, num_workers=2, worker_type="thread", sampler=Counting()),
        lambda: DataLoader(Holed(), 2, device=FakeBackend()),
        lambda: StatefulDataLoader(Holed(), 2, sampler=Counting()),
    ],
    ids=["inline", "thread", "device", "torch"],
)
def test_a_batch_that_failed_counts_in_a_state(make, after):
    one, two = make(), make()
    epoch, said = iter(one), []
    for _ in range(after):
        try:
            said.append(next(epoch).cpu().tolist())
        except LookupError:
            said.append("failed")
    state = one.state_dict()
    assert said == [[0, 1], [2, 3], "failed", [6, 7]][:after]
    rest = [[6, 7], [8, 9]] if after == 3 else [[8, 9]] if after == 4 else []
    two.load_state_dict(state)
    again = iter(two)
    if after == 2:
        with pytest.raises(LookupError):
            next(again)
    assert [batch.cpu().tolist() for batch, _ in zip(again, rest, strict=False)] == rest
    for loader in (one, two):
        loader.close()
