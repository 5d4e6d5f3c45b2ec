"""A buffer as the loader's source: when it plans, what it waits for, and what its reader is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting_rig import until

from async_loader import Fifo, Lifo
from async_loader.errors import Closed, ConfigError
from async_loader.lifecycle import Deadline, EndFlag, Patience
from async_loader.replay import ReplayBuffer

PATIENCE_S = 60.0


def test_a_source_may_have_a_sampler_of_its_own() -> None:
    buffer = ReplayBuffer(100, sampler=Fifo(), seed=5)
    buffer.extend(x=np.arange(50))
    assert buffer.source().plan(3, Patience()).index.tolist() == [0, 1, 2]
    drawn = buffer.source(sampler=Lifo()).plan(3, Patience()).index.tolist()
    assert drawn == [49, 48, 47]
    buffer.add(x=1)
    assert buffer.source().plan(3, Patience()).index.tolist() == [0, 1, 2]


def test_ranks_draw_on_their_own() -> None:
    buffer = ReplayBuffer(1000, seed=5)
    buffer.extend(x=np.arange(1000))
    one, two = (
        buffer.source(rank=rank, world_size=2).plan(10, Patience()).index.tolist()
        for rank in range(2)
    )
    assert one != two
    for rank, world_size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=r"ranks count from 0|rank is -1|world_size is 0"):
            buffer.source(rank=rank, world_size=world_size)


def test_plan_waits_for_min_size_however_it_is_reached() -> None:
    buffer = ReplayBuffer(8)
    sources = [buffer.source(min_size=5), buffer.source(min_size=6)]
    planned: list[int] = []
    threads = [
        threading.Thread(
            target=lambda s=s: planned.append(
                int(s.plan(4, Patience(deadline=Deadline(PATIENCE_S))).index.max())
            )
        )
        for s in sources
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(buffer.stats().waiting) == 2)
    buffer.add(x=1)
    assert "holds 1 of the 5" in str(sources[0].waiting_for())
    for _ in range(3):
        buffer.add(x=1)
    assert not planned
    buffer.extend(x=np.ones(3, np.int64))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(planned) == 2


def test_the_end_flag_ends_the_wait() -> None:
    buffer = ReplayBuffer(8)
    end = EndFlag()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            buffer.source().plan(4, Patience(end))
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: buffer.stats().waiting)
    end.set()
    thread.join(PATIENCE_S)
    assert len(ended) == 1
    end.close()
