"""A buffer as the loader's source: when it plans, what it waits for, and what its reader is."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from async_loader import Fifo, Lifo, Prioritized, Transitions
from async_loader.errors import Closed, ConfigError, Timeout, Unsupported
from async_loader.lifecycle import Deadline, EndFlag, Patience
from async_loader.replay import ReplayBuffer
from async_loader.source import Applied, Explaining, Rows, Source
from async_loader.table import Table

PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; another thread sees to that."""
    deadline = Deadline(PATIENCE_S)
    while not condition():
        assert not deadline.expired
        threading.Event().wait(0.001)


def test_a_buffer_is_a_table_and_no_source_and_makes_sources() -> None:
    buffer = ReplayBuffer(8)
    assert isinstance(buffer, Table)
    assert not isinstance(buffer, Source)
    assert isinstance(buffer.source(), Source)
    assert isinstance(buffer.source(), Explaining)
    assert not {"plan", "reader", "waiting_for", "note_ahead"} & set(dir(buffer))


def test_a_plan_is_ids_of_live_steps() -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.extend(x=np.arange(20))
    plan = buffer.source().plan(100, Patience())
    assert isinstance(plan, Rows)
    assert plan.index.dtype == np.int64
    assert set(plan.index.tolist()) == set(range(12, 20))


def test_plans_are_reproducible() -> None:
    def planned(seed: int) -> list[int]:
        buffer = ReplayBuffer(100, seed=seed)
        buffer.extend(x=np.arange(100))
        return [int(i) for _ in range(3) for i in buffer.source().plan(10, Patience()).index]

    assert planned(5) == planned(5) != planned(6)


def test_a_source_may_have_a_sampler_of_its_own() -> None:
    buffer = ReplayBuffer(100, sampler=Fifo(), seed=5)
    buffer.extend(x=np.arange(50))
    assert buffer.source().plan(3, Patience()).index.tolist() == [0, 1, 2]
    drawn = buffer.source(sampler=Lifo()).plan(3, Patience()).index.tolist()
    assert drawn == [49, 48, 47]
    buffer.add(x=1)
    assert buffer.source().plan(3, Patience()).index.tolist() == [0, 1, 2]


def test_a_second_sampler_is_told_what_comes_and_goes() -> None:
    buffer = ReplayBuffer(10, {"x": np.int64})
    source = buffer.source(sampler=Lifo())
    buffer.extend(x=np.arange(25))
    assert source.plan(10, Patience()).index.tolist() == list(range(24, 14, -1))


def test_ranks_draw_on_their_own() -> None:
    buffer = ReplayBuffer(1000, seed=5)
    buffer.extend(x=np.arange(1000))
    one, two = (
        buffer.source(rank=rank, world_size=2).plan(10, Patience()).index.tolist()
        for rank in range(2)
    )
    assert one != two
    for rank, world_size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="ranks count from 0"):
            buffer.source(rank=rank, world_size=world_size)


def test_a_view_is_seen_in_what_is_read() -> None:
    buffer = ReplayBuffer(100, seed=5)
    for n in range(30):
        buffer.add(x=n, reward=float(n), terminated=n % 10 == 9)
    source = buffer.source(view=Transitions(n_steps=3, gamma=0.5))
    plan = source.plan(50, Patience())
    reader = source.reader()
    assert reader is not None
    for sample in reader.fetch(plan.index, (0,)):
        rewards = [n for n in range(sample["x"], sample["x"] + 3) if n // 10 == sample["x"] // 10]
        assert sample["reward"] == sum(0.5**i * r for i, r in enumerate(rewards))
        assert sample["discount"] == (0.0 if rewards[-1] % 10 == 9 else 0.125)


def test_prioritized_plans_carry_weights() -> None:
    buffer = ReplayBuffer(100, sampler=Prioritized(), seed=5)
    buffer.extend(x=np.arange(100))
    assert buffer.update_priorities(np.arange(100), np.arange(100.0)) == Applied(100, 0)
    source = buffer.source()
    plan = source.plan(64, Patience())
    reader = source.reader()
    assert reader is not None
    samples = reader.fetch(plan.index, (0,))
    weight = np.array([sample["weight"] for sample in samples])
    assert weight.max() == 1
    rare, common = min(samples, key=lambda s: s["x"]), max(samples, key=lambda s: s["x"])
    assert rare["weight"] > common["weight"]


def test_there_is_a_reader_as_soon_as_the_schema_is_known() -> None:
    buffer = ReplayBuffer(8)
    assert buffer.source().reader() is None
    buffer.add(x=1)
    assert buffer.source().reader() is not None
    assert ReplayBuffer(8, {"x": np.int64}).source().reader() is not None


def test_plan_waits_for_the_first_step_and_says_for_what() -> None:
    buffer = ReplayBuffer(8)
    source = buffer.source()
    assert (
        source.waiting_for()
        == "steps: the replay buffer holds 0 of the 1 that sampling needs, add more"
    )
    planned: list[Rows] = []
    thread = threading.Thread(
        target=lambda: planned.append(source.plan(4, Patience(deadline=Deadline(PATIENCE_S))))
    )
    thread.start()
    until(lambda: buffer.stats().waiting)
    buffer.add(x=1)
    thread.join(PATIENCE_S)
    assert [plan.index.tolist() for plan in planned] == [[0, 0, 0, 0]]
    assert source.waiting_for() is None
    assert not buffer.stats().waiting


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


def test_a_deadline_ends_the_wait_with_the_reason() -> None:
    buffer = ReplayBuffer(8)
    with pytest.raises(Timeout, match="waiting for steps: the replay buffer holds 0 of the 1"):
        buffer.source().plan(4, Patience(deadline=Deadline(0.01)))
    assert not buffer.stats().waiting


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


def test_uniform_sampling_takes_no_priorities() -> None:
    buffer = ReplayBuffer(8)
    with pytest.raises(Unsupported, match="no priorities"):
        buffer.update_priorities(np.zeros(1, np.int64), np.ones(1))


@pytest.mark.parametrize("min_size", [0, -1, 9])
def test_a_min_size_that_is_never_reached_is_refused(min_size: int) -> None:
    with pytest.raises(ConfigError, match="min_size="):
        ReplayBuffer(8).source(min_size=min_size)
