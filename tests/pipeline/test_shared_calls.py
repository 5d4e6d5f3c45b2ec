"""Jobs that call one function travel as the function and their arguments, and call the same."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from async_loader.pipeline import codec
from async_loader.pipeline.batches.assembler import _encode_calls
from async_loader.pipeline.codec import SharedCalls, shared


class Frames:
    def __init__(self, path):
        self.path = path

    def load(self, *args):
        return self.path, args

    def __eq__(self, other):
        raise AssertionError("no code of the user's is run to compare two jobs")

    __hash__ = None


def other(*args):
    return args


def sent(calls):
    return codec.decode(_encode_calls(calls, 0).head)


@given(st.lists(st.lists(st.integers() | st.text(max_size=3), max_size=3), min_size=1, max_size=8))
def test_partials_of_a_bound_method_give_in_the_worker_what_they_give_here(arguments):
    frames = Frames("here")
    calls = [partial(frames.load, *args) for args in arguments]
    received = sent(calls)
    assert isinstance(received, SharedCalls)
    assert [received.function(*args) for args in received.arguments] == [call() for call in calls]


def test_objects_that_several_jobs_refer_to_are_one_object_in_the_worker_too():
    table = [1, 2, 3]
    received = sent([partial(other, table, i) for i in range(3)])
    first, second, third = (args[0] for args in received.arguments)
    assert first is second is third


def test_jobs_that_differ_in_more_than_their_arguments_travel_as_they_are():
    one, two = Frames("one"), Frames("two")
    for calls in (
        [partial(one.load, 1), partial(two.load, 1)],
        [partial(one.load, 1), partial(other, 1)],
        [partial(other, 1), other],
        [other, partial(other, 1)],
        [partial(int, "11"), partial(int, "11", base=2)],
    ):
        assert shared(calls) is None
    assert [call() for call in sent([partial(int, "11"), partial(int, "11", base=2)])] == [11, 3]
