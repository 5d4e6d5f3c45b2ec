"""gluon's samplers: each index once, lengths that are true, and the quirks that scripts rest on."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.compat import gluon
from async_loader.compat.gluon.data.sampler import RandomSampler as SamplerByItsModule

sizes = st.integers(0, 60)
batch_sizes = st.integers(1, 12)
modes = st.sampled_from(["keep", "discard", "rollover"])


@given(sizes)
def test_a_random_sampler_gives_each_index_once(length):
    sampler = gluon.data.RandomSampler(length)
    assert sorted(sampler) == list(range(length))
    assert len(sampler) == length


def test_numpys_seed_reproduces_a_random_sampler_and_each_pass_differs():
    sampler = SamplerByItsModule(100)
    np.random.seed(7)
    first, second = list(sampler), list(sampler)
    np.random.seed(7)
    assert list(sampler) == first != second
    np.random.seed(7)
    drawn = np.arange(100)
    np.random.shuffle(drawn)  # as in the original: the same seed gives the same order
    assert first == drawn.tolist()
    assert type(first[0]) is np.int64


@given(st.integers(1, 60), st.data())
def test_an_interval_sampler_gives_each_index_once_or_every_nth(length, data):
    interval = data.draw(st.integers(1, length))
    rolled, cut = (
        gluon.data.IntervalSampler(length, interval, rollover=over) for over in (True, False)
    )
    assert sorted(rolled) == list(range(length))
    assert list(rolled)[: len(cut)] == list(cut) == list(range(0, length, interval))
    assert len(rolled) == length
    assert len(cut) == len(list(cut))


def test_an_interval_sampler_in_the_originals_order():
    assert list(gluon.data.IntervalSampler(13, interval=3)) == [
        0,
        3,
        6,
        9,
        12,
        1,
        4,
        7,
        10,
        2,
        5,
        8,
        11,
    ]
    with pytest.raises(AssertionError, match="interval is 4, length only 3"):
        gluon.data.IntervalSampler(3, 4)


@given(sizes, batch_sizes, modes, st.integers(1, 4))
def test_len_is_the_number_of_batches_that_come_in_every_pass(length, batch_size, mode, passes):
    sampler = gluon.data.BatchSampler(gluon.data.SequentialSampler(length), batch_size, mode)
    left = 0
    for _ in range(passes):
        count = len(sampler)
        batches = list(sampler)
        assert count == len(batches)
        if mode == "keep":
            assert list(chain.from_iterable(batches)) == list(range(length))
        else:
            assert all(len(batch) == batch_size for batch in batches)
        if mode == "rollover":
            assert sum(map(len, batches)) == (left + length) // batch_size * batch_size
            left = (left + length) % batch_size


def test_rollover_opens_the_next_pass_so_its_length_depends_on_the_pass():
    sampler = gluon.data.BatchSampler(gluon.data.SequentialSampler(10), 3, "rollover")
    lengths, first = [], []
    for _ in range(4):
        lengths.append(len(sampler))
        batches = list(sampler)
        first.append(batches[0])
    assert lengths == [3, 3, 4, 3]
    assert first == [[0, 1, 2], [9, 0, 1], [8, 9, 0], [0, 1, 2]]


def test_a_batch_sampler_takes_any_sampler_and_refuses_bad_arguments():
    assert list(gluon.data.BatchSampler("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(
        ValueError, match="last_batch is 'drop': it is 'keep', 'discard' or 'rollover'"
    ):
        gluon.data.BatchSampler(range(3), 2, "drop")
    with pytest.raises(ValueError, match="batch_size is 0"):
        gluon.data.BatchSampler(range(3), 0)
