"""Tasks on their way: where they come from, how many are under way, and what a signal does."""

from __future__ import annotations

import pytest

from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
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


def test_a_task_that_a_signal_ends_is_passed_over():
    ready = TrainQueue()
    supply = Supply(IterableTasks(range(5)), Here({1, 3}), 9, ready)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            supply.fill()
    assert [task for task, _ in drained(ready, supply)] == [0, 2, 4]


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
