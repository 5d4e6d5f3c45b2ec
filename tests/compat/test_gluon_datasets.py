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


@pytest.mark.parametrize(("count", "expected"), [(None, 5), (0, 0), (3, 3), (5, 5), (99, 5)])
def test_take(count, expected):
    assert items(SimpleDataset(range(5)).take(count)) == list(range(expected))


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


def test_transform_first_leaves_the_label_alone():
    assert items(ArrayDataset([1, 2], "ab").transform_first(double)) == [(2, "a"), (4, "b")]
    assert items(SimpleDataset([1, 2]).transform_first(double, lazy=False)) == [2, 4]
    assert items(
        pickle.loads(pickle.dumps(ArrayDataset([1, 2], "ab").transform_first(double)))
    ) == [(2, "a"), (4, "b")]
