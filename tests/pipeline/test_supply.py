"""Tasks on their way: where they come from, how many are under way, and what a signal does."""

from __future__ import annotations

import pytest

from async_loader.errors import Closed
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.job_queue import Job
from async_loader.pipeline.producer import NO_WAIT, Supply
from async_loader.pipeline.tasks import IterableTasks, StreamTasks
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.source import END

NOW = Deadline(0.0)


class Here:
    """Does a task at once; raises KeyboardInterrupt at the numbers that it is told."""

    def __init__(self, interrupts=()) -> None:
        self.interrupts = set(interrupts)

    def do(self, seq, task, worker):
        if seq in self.interrupts:
            raise KeyboardInterrupt
        return Batch(tree=(task, worker))


def drained(ready: TrainQueue, supply: Supply) -> list[object]:
    found: list[object] = []
    while (item := ready.get(NOW)) is not END:
        found.append(item.error if isinstance(item, Failure) else item.tree)
        supply.give(ready.given)
        supply.fill()
    return found


def test_as_many_tasks_are_sent_as_there_are_credits():
    ready = TrainQueue()
    supply = Supply(IterableTasks(range(5)), Here(), 2, ready)
    supply.fill()
    assert (supply.seq - supply.given, ready.depth) == (2, 2)
    assert drained(ready, supply) == [(n, None) for n in range(5)]


def test_a_task_that_a_signal_ends_is_passed_over():
    ready = TrainQueue()
    supply = Supply(IterableTasks(range(5)), Here({1, 3}), 9, ready)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            supply.fill()
    assert [task for task, _ in drained(ready, supply)] == [0, 2, 4]


def test_an_error_of_the_iterable_comes_in_its_turn_and_is_no_task():
    def numbers():
        yield from range(2)
        raise LookupError("no third")

    ready = TrainQueue()
    supply = Supply(IterableTasks(numbers()), Here(), 9, ready)
    supply.fill()
    first, second, error = drained(ready, supply)
    assert (first, second) == ((0, None), (1, None))
    assert isinstance(error, LookupError)
    assert supply.failed_draw == 2


def test_static_tasks_go_to_their_worker():
    ready = TrainQueue()
    supply = Supply(IterableTasks("abcd", workers=3, first=2), Here(), 9, ready)
    supply.fill()
    assert drained(ready, supply) == [("a", 2), ("b", 0), ("c", 1), ("d", 2)]


def test_streams_take_turns_and_one_that_has_ended_is_left_out():
    streams, turns = StreamTasks(3, turn=1), []
    while streams.draw(NO_WAIT) is not END:
        turns.append(streams.worker(len(turns), None))
        if len(turns) == 4:
            streams.stream_ended(0)
        if len(turns) == 6:
            streams.stream_ended(1)
            streams.stream_ended(2)
    assert turns == [1, 2, 0, 1, 2, 1]


def test_out_of_order_the_worker_with_the_fewest_jobs_is_next():
    def job(worker):
        return Job(0, 1, None, True, TrainQueue(), worker=worker)

    streams = StreamTasks(2, under_way=[job(0), job(0), job(1)])
    assert streams.draw(NO_WAIT) is None
    assert streams.worker(0, None) == 1


def test_a_supply_that_is_closed_ends_a_wait():
    supply = Supply(IterableTasks(range(5)), Here(), 1, TrainQueue())
    assert supply.room
    supply.fill()
    assert not supply.room
    supply.close()
    with pytest.raises(Closed):
        supply.wait(NOW)
