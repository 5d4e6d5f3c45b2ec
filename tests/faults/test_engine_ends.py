"""What a fault leaves whole: descriptors have one owner, a wait without an end is named, a new
definition reaches workers.
"""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
from fault_rig import SLACK_S

from async_loader import AsyncDataLoader, Fifo, ReplayBuffer
from async_loader.errors import OutOfMemory, WouldDeadlock
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
