"""gluon's batchify functions: values, dtypes, containers, and refused arguments."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from async_loader.compat.gluon.data.batchify import Append, AsList, Group, Pad, Stack


def test_stack_of_lists_arrays_and_tensors():
    arrays = [np.arange(4) + i for i in range(3)]
    for samples in (arrays, [torch.from_numpy(one) for one in arrays]):
        assert Stack()(samples).equal(torch.tensor(np.stack(arrays)))
    batch = Stack()([[1, 2.5], [3, 4.5]])  # lists are fields, as tuples are
    assert [field.tolist() for field in batch] == [[1, 3], [2.5, 4.5]]
    assert type(batch) is list


def test_numbers_keep_the_dtypes_that_numpy_gives_them():
    samples = [
        (1, 0.5, True, np.float32(2), np.uint8([1]), torch.ones(2, dtype=torch.bfloat16))
    ] * 2
    expected = [torch.int64, torch.float64, torch.bool, torch.float32, torch.uint8, torch.bfloat16]
    assert [field.dtype for field in Stack()(samples)] == expected


def test_what_does_not_stack_says_so_and_what_to_do():
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\) in one batch: pad them with Pad"):
        Stack()([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="samples of 1 and 2 fields"):
        Stack()([(1,), (1, 2)])  # the original drops the second field without a word
    with pytest.raises(TypeError, match="AsList"):
        Stack()(["a", "b"])
    with pytest.raises(TypeError, match="AsList"):
        Stack()([{"a": 1}, {"a": 2}])


def test_pad_fills_every_axis_to_the_longest():
    assert Pad()([[1, 2, 3, 4], [4, 5, 6], [8, 2]]).tolist() == [
        [1, 2, 3, 4],
        [4, 5, 6, 0],
        [8, 2, 0, 0],
    ]
    a, b = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), np.array([[5, 8], [1, 2], [3, 3]])
    batch = Pad(val=-1)([a, b])
    assert batch.shape == (2, 3, 4)
    assert batch[0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [-1] * 4]
    assert batch[1].tolist() == [[5, 8, -1, -1], [1, 2, -1, -1], [3, 3, -1, -1]]


def test_append_keeps_samples_apart():
    batch = Append()([[1, 2], [3]])
    assert [one.tolist() for one in batch] == [[[1, 2]], [[3]]]
    assert [one.shape for one in Append(expand=False)([np.zeros(2), np.zeros((3, 4))])] == [
        (2,),
        (3, 4),
    ]
    assert Append(batch_axis=1)([np.zeros(3)])[0].shape == (3, 1)


def test_group_gives_a_tuple_with_each_field_by_its_own_function():
    samples = [([1, 2], 7, "one"), ([3], 8, "two")]
    for group in (Group(Pad(), Stack(), AsList()), Group([Pad(), Stack(), AsList()])):
        batch = pickle.loads(pickle.dumps(group))(samples)
        assert type(batch) is tuple
        assert batch[0].tolist() == [[1, 2], [3, 0]]
        assert batch[1].tolist() == [7, 8]
        assert batch[2] == ["one", "two"]
