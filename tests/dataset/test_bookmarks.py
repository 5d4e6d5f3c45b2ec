"""Bookmarks: an iteration that goes on from one gives what the first one would still have given."""

from __future__ import annotations

import copy
import json

import hypothesis.strategies as st
from dataset_rig import CountingIterator
from hypothesis import given

from async_loader.dataset.bookmarks import Bookmark, upto

N = 6


class Plain:
    """Neither has a state."""

    def __iter__(self):
        return iter(range(N))


class Whole:
    """The iterable has one: its iterator is a generator, which sets it back at its end."""

    at = epoch = 0

    def __iter__(self):
        while self.at < N:
            self.at += 1
            yield 10 * self.epoch + self.at - 1
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Steps(CountingIterator):
    def __iter__(self):
        raise AssertionError("an iterator is not to be asked for an iterator again")


class Items:
    """The iterator has one."""

    def __iter__(self):
        return Steps(N)


class Both:
    """Each has one, and neither understands the other's."""

    n = N

    def __iter__(self):
        return Steps(self.n)

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class Own:
    """Its own iterator, which sets itself up in ``__iter__`` and cannot load a state before
    that.
    """

    def __iter__(self):
        self.place = [0]
        return self

    def __next__(self):
        if self.place[0] == N:
            raise StopIteration
        self.place[0] += 1
        return self.place[0] - 1

    def state_dict(self):
        return {"place": self.place[0]}

    def load_state_dict(self, state):
        self.place[0] = state["place"]


KINDS = [Plain, Whole, Items, Both, Own]


def _saved(mark):
    return Bookmark.from_state(json.loads(json.dumps(copy.deepcopy(mark).to_state())))


@given(kind=st.sampled_from(KINDS), at=st.integers(0, N), again=st.integers(0, N))
def test_what_goes_on_from_a_bookmark_is_the_rest_and_so_is_what_goes_on_from_that(kind, at, again):
    first, second, third = kind(), kind(), kind()
    items = iter(first)
    list(upto(items, at))
    mark = _saved(Bookmark.of(first, items, at, ended=False))
    resumed = mark.resume(second)
    rest = list(upto(items, None))
    begun = list(upto(resumed, min(again, len(rest))))
    assert begun == rest[:again]
    later = _saved(Bookmark.of(second, resumed, at + len(begun), ended=False))
    assert list(upto(later.resume(third), None)) == rest[again:]
    assert list(upto(resumed, None)) == rest[again:]


@given(kind=st.sampled_from(KINDS), epochs=st.integers(1, 3))
def test_the_end_of_an_epoch_is_the_beginning_of_the_next(kind, epochs):
    first, second = kind(), kind()
    for _ in range(epochs):
        items = iter(first)
        assert len(list(upto(items, None))) == N
    mark = _saved(Bookmark.of(first, items, N, ended=True))
    assert list(upto(mark.begin_anew(second), None)) == list(upto(iter(first), None))
