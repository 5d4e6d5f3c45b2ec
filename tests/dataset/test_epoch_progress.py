"""The course of an epoch: tasks that are over are not done again, in whatever order they ended and
however often it was saved.
"""

from __future__ import annotations

import json

import hypothesis.strategies as st
from hypothesis import given

from async_loader.dataset.epoch_progress import EpochProgress
from async_loader.pipeline.batch import Batch
from async_loader.pipeline.train_queue import TrainQueue

TASKS = 12


@given(
    st.lists(st.permutations(range(TASKS)), min_size=1, max_size=3),
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
def test_a_task_is_over_once_through_any_number_of_states(orders, counts):
    epoch_progress, over = EpochProgress({}), []
    for order, count in zip(orders, counts, strict=False):
        left = list(epoch_progress.left(iter(range(epoch_progress.upto, TASKS))))
        assert sorted([*over, *left]) == list(range(TASKS))
        queue = TrainQueue(in_order=False)
        told, before = 0, epoch_progress.upto
        for position in [n for n in order if n < len(left)][:count]:
            queue.put(position, Batch(tree=left[position]))
            assert queue.take().tree == left[position]
            over.append(left[position])
            told += epoch_progress.passed(queue.turn, queue.beyond)
        assert {*range(epoch_progress.upto), *epoch_progress.beyond} == set(over)
        assert epoch_progress.upto not in over
        assert told == epoch_progress.upto - before
        epoch_progress = EpochProgress(json.loads(json.dumps(epoch_progress.state())))
        assert epoch_progress.over == len(over)
