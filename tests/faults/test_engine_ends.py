"""What a fault leaves whole: descriptors have one owner, a wait without an end is named, a new
definition reaches workers.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fault_rig import SLACK_S

from async_loader import AsyncDataLoader, Fifo, ReplayBuffer
from async_loader.errors import WouldDeadlock


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
