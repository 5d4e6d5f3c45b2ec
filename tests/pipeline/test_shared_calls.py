"""Jobs that call one function travel as the function and their arguments, and call the same."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from async_loader.pipeline import codec
from async_loader.pipeline.batches.assembler import _encode_calls
from async_loader.pipeline.codec import SharedCalls


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
