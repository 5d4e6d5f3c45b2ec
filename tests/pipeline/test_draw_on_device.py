"""A consumer that draws its batches itself and copies them to a device: what can go wrong there."""

from __future__ import annotations

import functools
import signal
import threading

import numpy as np
import pytest
from fake_device import FakeBackend

from async_loader import AsyncDataLoader
from async_loader.errors import Broken
from async_loader.pipeline import source_engine
from async_loader.pipeline.producer import DrawCosts
from async_loader.source import Ready

ROWS, BATCH, LIMIT_S = 600, 16, 60.0


@pytest.fixture(autouse=True)
def _the_caller_draws(monkeypatch):
    monkeypatch.setattr(source_engine, "DrawCosts", functools.partial(DrawCosts, 1e9))


def columns() -> dict[str, np.ndarray]:
    return {"x": np.arange(ROWS)}


class Device(FakeBackend):
    """Has a side stream from `open` on only, as a real one; fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open, self.begun = threading.Event(), threading.Event()
        self.may_open.set()
        self.is_open = False
        self.refused: BaseException | None = None  # by `open`
        self.uploads_fail: set[int] = set()
        self.records_fail = self.interrupts = False

    def open(self) -> None:
        self.begun.set()
        assert self.may_open.wait(LIMIT_S)
        if self.refused is not None:
            raise self.refused
        super().open()
        self.is_open = True

    def aside(self):
        assert self.is_open, "the side stream is used before it is there"
        return super().aside()

    def upload(self, root, nbytes):
        if self.interrupts:
            self.interrupts = False
            signal.raise_signal(signal.SIGINT)
            raise MemoryError("device memory is full")
        if self.copies in self.uploads_fail:
            self.uploads_fail.discard(self.copies)
            raise MemoryError("device memory is full")
        return super().upload(root, nbytes)

    def record(self, stream=None):
        if self.records_fail:
            raise OSError("the device fell off the bus")
        return super().record(stream)


class Slow:
    """A source whose draws are interrupted by what a test does meanwhile."""

    def __init__(self, meanwhile) -> None:
        self.meanwhile = meanwhile

    def plan(self, batch_size, patience):
        return self.draw_now(batch_size)

    def draw_now(self, batch_size):
        self.meanwhile()
        return Ready({"x": np.arange(batch_size)})

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        raise NotImplementedError


@pytest.mark.parametrize("on_error", ["raise", "skip", "fatal"])
def test_a_copy_that_fails_is_a_batch_that_fails(on_error):
    device = Device()
    device.uploads_fail = {3}
    with AsyncDataLoader(
        columns(), BATCH, device, seed=1, on_error=on_error, timeout_s=LIMIT_S
    ) as loader:
        given = [next(loader)["index"] for _ in range(3)]
        if on_error != "skip":
            with pytest.raises(MemoryError, match="device memory is full"):
                next(loader)
        if on_error == "fatal":
            with pytest.raises(Broken, match="device memory is full"):
                next(loader)
            return
        given += [next(loader)["index"] for _ in range(3)]
        assert loader.stats().skipped == (on_error == "skip")
        assert loader.stats().learner.batches == 6
    with AsyncDataLoader(columns(), BATCH, FakeBackend(), seed=1, timeout_s=LIMIT_S) as loader:
        all_ = [next(loader)["index"] for _ in range(7)]
    assert [one.tolist() for one in given] == [one.tolist() for one in all_[:3] + all_[4:]]


def test_a_device_that_is_lost_breaks_the_loader_for_good():
    device = Device()
    with AsyncDataLoader(columns(), BATCH, device, seed=1, timeout_s=LIMIT_S) as loader:
        next(loader)
        device.records_fail = True
        for _ in range(3):
            with pytest.raises(Broken, match="fell off the bus"):
                next(loader)
        assert device.copies == 2
        device.records_fail = False


def test_a_loader_that_is_closed_while_its_caller_draws_ends():
    loaders = []

    def close() -> None:
        thread = threading.Thread(target=loaders[0].close)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()

    turns = iter([None, None, close])
    source = Slow(lambda: (next(turns) or (lambda: None))())
    loaders.append(AsyncDataLoader(source, BATCH, Device(), timeout_s=LIMIT_S))
    assert len(list(loaders[0])) == 2
