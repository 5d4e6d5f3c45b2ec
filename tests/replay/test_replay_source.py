"""A buffer as the loader's source: when it plans, what it waits for, and what its reader is."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from async_loader.errors import Closed, ConfigError, Timeout, Unsupported
from async_loader.lifecycle import Deadline, EndFlag, Patience
from async_loader.replay import ReplayBuffer
from async_loader.source import Rows, Source


def test_a_buffer_and_what_it_makes_are_sources() -> None:
    buffer = ReplayBuffer(8)
    assert isinstance(buffer, Source)
    assert isinstance(buffer.source(), Source)


def test_a_plan_is_ids_of_live_steps() -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.extend(x=np.arange(20))
    plan = buffer.plan(100, Patience())
    assert isinstance(plan, Rows)
    assert plan.index.dtype == np.int64
    assert set(plan.index.tolist()) == set(range(12, 20))


def test_plans_are_reproducible_whatever_else_is_sampled() -> None:
    def planned(disturb: bool) -> list[int]:
        buffer = ReplayBuffer(100, seed=5)
        buffer.extend(x=np.arange(100))
        if disturb:
            buffer.sample(3)
        return buffer.plan(10, Patience()).index.tolist()

    assert planned(False) == planned(True)


def test_a_source_of_its_own_has_its_own_seed() -> None:
    buffer = ReplayBuffer(100, seed=5)
    buffer.extend(x=np.arange(100))
    one, two, other = (buffer.source(seed=s).plan(10, Patience()).index.tolist() for s in (1, 1, 2))
    assert one == two != other


def test_there_is_a_reader_as_soon_as_the_schema_is_known() -> None:
    buffer = ReplayBuffer(8)
    assert buffer.reader() is None
    buffer.add(x=1)
    assert buffer.reader() is not None
    assert ReplayBuffer(8, {"x": np.int64}).reader() is not None


def test_plan_waits_for_the_first_step_and_says_for_what() -> None:
    buffer = ReplayBuffer(8)
    assert buffer.waiting_for() == "steps: the replay buffer holds 0 of the 1 that sampling needs, add more"
    planned: list[Rows] = []
    thread = threading.Thread(target=lambda: planned.append(buffer.plan(4, Patience(deadline=Deadline(20)))))
    thread.start()
    while not buffer._bells:
        pass
    buffer.add(x=1)
    thread.join(20)
    assert [plan.index.tolist() for plan in planned] == [[0, 0, 0, 0]]
    assert buffer.waiting_for() is None
    assert not buffer._bells


def test_plan_waits_for_min_size_however_it_is_reached() -> None:
    buffer = ReplayBuffer(8)
    sources = [buffer.source(min_size=5), buffer.source(min_size=6)]
    planned: list[int] = []
    threads = [
        threading.Thread(target=lambda s=s: planned.append(int(s.plan(4, Patience(deadline=Deadline(20))).index.max())))
        for s in sources
    ]
    for thread in threads:
        thread.start()
    while len(buffer._bells) < 2:
        pass
    buffer.add(x=1)
    assert "holds 1 of the 5" in str(sources[0].waiting_for())
    for _ in range(3):
        buffer.add(x=1)
    assert not planned
    buffer.extend(x=np.ones(3, np.int64))
    for thread in threads:
        thread.join(20)
    assert len(planned) == 2


def test_a_deadline_ends_the_wait_with_the_reason() -> None:
    buffer = ReplayBuffer(8)
    with pytest.raises(Timeout, match="waiting for steps: the replay buffer holds 0 of the 1"):
        buffer.plan(4, Patience(deadline=Deadline(0.01)))
    assert not buffer._bells


def test_the_end_flag_ends_the_wait() -> None:
    buffer = ReplayBuffer(8)
    end = EndFlag()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            buffer.plan(4, Patience(end))
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not buffer._bells:
        pass
    end.set()
    thread.join(20)
    assert len(ended) == 1
    end.close()


def test_uniform_sampling_takes_no_priorities() -> None:
    buffer = ReplayBuffer(8)
    with pytest.raises(Unsupported, match="no priorities"):
        buffer.feedback(np.zeros(1, np.int64), np.ones(1))


@pytest.mark.parametrize("min_size", [0, -1, 9])
def test_a_min_size_that_is_never_reached_is_refused(min_size: int) -> None:
    with pytest.raises(ConfigError, match="min_size="):
        ReplayBuffer(8).source(min_size=min_size)
