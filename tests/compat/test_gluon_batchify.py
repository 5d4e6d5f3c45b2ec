"""gluon's batchify functions: values, dtypes, containers, and refused arguments."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from async_loader.compat import gluon
from async_loader.compat.gluon.data.batchify import Append, AsList, Group, Pad, Stack


@pytest.fixture(autouse=True)
def _torch_again():
    yield
    gluon.set_array_type("torch")


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


def test_the_older_default_takes_a_list_for_one_array():
    for fn in (gluon.default_batchify_fn, gluon.default_mp_batchify_fn):
        assert fn([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
        batch = fn([(1, [2, 3]), (4, [5, 6])])
        assert type(batch) is list
        assert [field.tolist() for field in batch] == [[1, 4], [[2, 3], [5, 6]]]


def test_shared_memory_where_it_is_asked_for():
    samples = [np.arange(3.0)] * 2
    assert gluon.default_mp_batchify_fn(samples).is_shared()
    assert Stack(use_shared_mem=True)(samples).is_shared()
    assert Pad(use_shared_mem=True)(samples).is_shared()
    assert all(one.is_shared() for one in Append(use_shared_mem=True)(samples))
    assert not Stack()(samples).is_shared()


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


def test_pad_rounds_up_and_casts_when_told():
    batch = Pad(val=9, dtype="float32", round_to=4)([[1, 2, 3, 4, 5], [6]])
    assert batch.shape == (2, 8)
    assert batch.dtype == torch.float32
    assert batch[1].tolist() == [6] + [9] * 7


def test_pad_takes_empty_samples_and_keeps_fractions():
    assert Pad()([[1], []]).tolist() == [[1], [0]]  # a failed assertion in the original
    assert Pad()([[1, 2], [0.5]]).tolist() == [[1, 2], [0.5, 0]]  # the original cuts to ints


def test_pad_refuses_several_fields_and_ranks():
    with pytest.raises(NotImplementedError, match=r"Group\(Pad\(\), ...\)"):
        Pad()([([1], 2), ([1, 2], 3)])
    with pytest.raises(ValueError, match="1 and 2 axes"):
        Pad()([np.zeros(1), np.zeros((1, 1))])


def test_pad_warns_of_tensors_once():
    pad = Pad()
    with pytest.warns(UserWarning, match="faster when samples are lists"):
        assert pad([torch.ones(2), torch.ones(1)]).tolist() == [[1, 1], [1, 0]]
    pad([torch.ones(2)])


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


def test_group_refuses_what_does_not_fit():
    with pytest.raises(AssertionError, match="callable"):
        Group(Stack(), 3)
    with pytest.raises(AssertionError, match="one list of them"):
        Group([Stack()], Stack())
    with pytest.raises(AssertionError, match="3 fields, Group has 2"):
        Group(Stack(), Stack())([(1, 2), (1, 2, 3)])


def test_arrays_come_as_numpys_for_one_function_or_for_all():
    assert type(Stack(array_type="numpy")([1, 2])) is np.ndarray
    gluon.set_array_type("numpy")
    assert gluon.default_array_type() == "numpy"
    for fn in (Stack(), Pad(), gluon.default_batchify_fn):
        assert type(fn([np.array([1]), np.array([2])])) is np.ndarray
    assert type(Append()([[1]])[0]) is np.ndarray
    with pytest.raises(ValueError, match="array_type is 'jax'"):
        gluon.set_array_type("jax")
