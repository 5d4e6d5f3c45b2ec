"""gluon's datasets and the datasets derived from them."""

from __future__ import annotations

import pickle
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.compat import gluon

ArrayDataset, SimpleDataset = gluon.data.ArrayDataset, gluon.data.SimpleDataset


def items(dataset):
    return [dataset[i] for i in range(len(dataset))]


def double(x):
    return 2 * x


def test_one_array_gives_its_items_and_several_give_tuples():
    x, y = np.arange(20.0).reshape(10, 2), list("abcdefghij")
    single, pairs = ArrayDataset(x), ArrayDataset(x, y)
    assert len(single) == len(pairs) == 10
    assert all((single[i] == x[i]).all() for i in range(10))
    assert all(
        (pairs[i][0] == x[i]).all() and pairs[i][1] == y[i] and type(pairs[i]) is tuple
        for i in range(10)
    )


def test_arrays_of_unequal_length_and_none_at_all_are_refused():
    with pytest.raises(AssertionError, match="arrays of 3, 2 items"):
        ArrayDataset(range(3), range(2))
    with pytest.raises(AssertionError, match="one array or more"):
        ArrayDataset()


def test_a_dataset_of_datasets():
    halves = ArrayDataset(SimpleDataset(range(4)), SimpleDataset("wxyz").transform(str.upper))
    assert items(halves) == [(0, "W"), (1, "X"), (2, "Y"), (3, "Z")]


def test_filter_looks_at_transformed_items():
    odd = SimpleDataset(range(10)).transform(lambda x: x + 1).filter(lambda x: x % 2)
    assert items(odd) == [1, 3, 5, 7, 9]
    assert len(odd) == 5


@given(st.integers(0, 50), st.integers(1, 9))
def test_shards_are_disjoint_consecutive_and_cover_everything(length, count):
    dataset = SimpleDataset(range(length))
    shards = [items(dataset.shard(count, i)) for i in range(count)]
    assert list(chain.from_iterable(shards)) == list(range(length))
    sizes = [len(shard) for shard in shards]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_nine_over_four_and_shards_that_there_are_not():
    dataset = SimpleDataset(range(9))
    assert [len(dataset.shard(4, i)) for i in range(4)] == [3, 2, 2, 2]
    for count, index in ((4, 4), (4, -1), (0, 0)):
        with pytest.raises(AssertionError):
            dataset.shard(count, index)


@pytest.mark.parametrize(("count", "expected"), [(None, 5), (0, 0), (3, 3), (5, 5), (99, 5)])
def test_take(count, expected):
    assert items(SimpleDataset(range(5)).take(count)) == list(range(expected))


def test_take_of_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="count is -1"):
        SimpleDataset(range(5)).take(-1)


def test_sample_goes_through_a_sampler_once():
    # 20 items: a shuffle leaves 10 in order in a run of 4 million
    dataset = SimpleDataset(range(20)).sample(gluon.data.RandomSampler(20))
    assert items(dataset) == items(dataset) != list(range(20))
    assert sorted(items(dataset)) == list(range(20))
    cut = SimpleDataset(range(10)).sample(gluon.data.IntervalSampler(10, 3, rollover=False))
    assert items(cut) == [0, 3, 6, 9]  # the original has length 10 and fails after the fourth item
    with pytest.raises(TypeError, match="sampler is of list"):
        SimpleDataset(range(3)).sample([0, 1])


def test_a_lazy_transform_runs_for_each_access_and_an_eager_one_once():
    calls = []
    base = SimpleDataset(range(3))
    lazy = base.transform(lambda x: calls.append(x) or x)
    assert not calls
    assert items(lazy) == items(lazy) == [0, 1, 2]
    assert len(calls) == 6
    eager = base.transform(lambda x: calls.append(x) or x, lazy=False)
    assert len(calls) == 9
    assert items(eager) == [0, 1, 2]
    assert len(calls) == 9


def test_a_tuple_comes_as_separate_arguments_and_a_list_does_not():
    assert items(ArrayDataset([1, 2], [10, 20]).transform(lambda a, b: a + b)) == [11, 22]
    assert items(SimpleDataset([[1, 2], [3, 4]]).transform(sum)) == [3, 7]


def test_transform_first_leaves_the_label_alone():
    assert items(ArrayDataset([1, 2], "ab").transform_first(double)) == [(2, "a"), (4, "b")]
    assert items(SimpleDataset([1, 2]).transform_first(double, lazy=False)) == [2, 4]
    assert items(
        pickle.loads(pickle.dumps(ArrayDataset([1, 2], "ab").transform_first(double)))
    ) == [(2, "a"), (4, "b")]


def test_a_base_class_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="no __getitem__"):
        gluon.data.Dataset()[0]
    with pytest.raises(NotImplementedError, match="no __len__"):
        len(gluon.data.Dataset())
