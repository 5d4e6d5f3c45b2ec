"""The course of an epoch: tasks that are over are not done again, in whatever order they ended and
however often it was saved.
"""

from __future__ import annotations

import json

import hypothesis.strategies as st
from hypothesis import given

from async_loader.epochs.course import Course
from async_loader.pipeline.batch import Loose
from async_loader.pipeline.train_queue import TrainQueue

TASKS = 12


@given(st.lists(st.permutations(range(TASKS)), min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_a_task_is_over_once_through_any_number_of_states(orders, counts):
    course, over = Course({}), []
    for order, count in zip(orders, counts, strict=False):
        left = list(course.left(iter(range(course.upto, TASKS))))
        assert sorted([*over, *left]) == list(range(TASKS))
        queue = TrainQueue(in_order=False)
        told, before = 0, course.upto
        for position in [n for n in order if n < len(left)][:count]:
            queue.put(position, Loose(left[position]))
            assert queue.get(None).tree == left[position]
            over.append(left[position])
            told += course.passed(queue.passed, queue.beyond)
        assert {*range(course.upto), *course.beyond} == set(over)
        assert course.upto not in over
        assert told == course.upto - before
        course = Course(json.loads(json.dumps(course.state())))
        assert course.over == len(over)


@given(st.integers(0, TASKS))
def test_in_order_there_is_one_number(count):
    course = Course({"yielded": 3})
    assert course.passed(count, ()) == count
    assert course.state() == {"yielded": 3 + count}
