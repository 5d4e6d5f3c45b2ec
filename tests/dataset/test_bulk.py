"""The compiled path: batches of arrays gathered in bulk are what item by item would give."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from dataset_rig import same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from async_loader import DataLoader, ReplayBuffer
from async_loader.dataset.array_dataset import columns_of
from async_loader.errors import ConfigError

DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "u2", "u4", "f2", "f4", "f8", "c8", "c16"]


@st.composite
def columns(draw, rows):
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
    array = (np.arange(np.prod(shape)) * 3 % 200).reshape(shape).astype(dtype)
    form = draw(
        st.sampled_from(
            ["array", "fortran", "reversed", "read-only", "strided", "tensor", "tensor strided"]
        )
    )
    if form == "fortran":
        return np.asfortranarray(array)
    if form == "reversed":
        return array[::-1]
    if form == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if form == "tensor":
        return torch.from_numpy(array)
    if form == "tensor strided":
        return torch.from_numpy(np.repeat(array, 2, axis=0))[::2]
    array.flags.writeable = form != "read-only"
    return array


@st.composite
def datasets(draw):
    rows = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["one", "tuple", "dict", "TensorDataset"]))
    if kind == "one":
        data = draw(columns(rows))
    else:
        parts = draw(st.lists(columns(rows), min_size=1, max_size=3))
        data = tuple(parts) if kind == "tuple" else {f"c{i}": p for i, p in enumerate(parts)}
        if kind == "TensorDataset":
            data = TensorDataset(
                *(p if isinstance(p, torch.Tensor) else torch.from_numpy(p.copy()) for p in parts)
            )
    if kind in ("one", "TensorDataset") and draw(st.booleans()):
        data = Subset(data, draw(st.lists(st.integers(-rows, rows - 1), min_size=1, max_size=9)))
    return data


@given(
    datasets(),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["keep", "drop", "roll_over"]),
    st.data(),
)
@settings(deadline=None, max_examples=40)
def test_it_gives_what_item_by_item_gives(dataset, batch_size, shuffle, last, data):
    options = {"batch_size": batch_size, "shuffle": shuffle, "last_batch": last, "seed": 3}
    if not shuffle and data.draw(st.booleans()):
        n = len(columns_of(dataset))
        options["sampler"] = data.draw(st.lists(st.integers(-n, n - 1), max_size=9))
    bulk, plain = (DataLoader(dataset, bulk=choice, **options) for choice in (True, False))
    for _ in range(2):
        assert len(bulk) == len(plain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, of tensors on read-only arrays
            same(list(bulk), list(plain))


def test_memory_is_used_again_and_never_while_a_batch_is_held():
    data = np.repeat(np.arange(40, dtype=np.uint8), 100_000).reshape(40, 100_000)
    kept = list(DataLoader(data, 8, bulk=True))
    assert all(
        (batch == torch.arange(i * 8, i * 8 + 8).reshape(8, 1)).all()
        for i, batch in enumerate(kept)
    )


@pytest.mark.parametrize("index", [[0, 10], [-11], [3, -12, 2]])
def test_an_index_out_of_bounds_is_an_error_and_the_next_batch_comes(index):
    loader = iter(DataLoader(np.arange(10), batch_sampler=[index, [1]], bulk=True))
    with pytest.raises(IndexError, match="out of bounds for a dataset of 10 items"):
        next(loader)
    assert next(loader).tolist() == [1]


class Own:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (Own(), {}, "dataset: Own is no array"),
        ((np.zeros(3), np.array(["a", "b", "c"])), {}, "dataset: column 1 has dtype <U1"),
        (np.zeros(3, ">f4"), {}, "dtype >f4"),
        (torch.zeros(3).to(torch.float8_e4m3fn), {}, "has dtype torch.float8_e4m3fn"),
        (torch.nn.Parameter(torch.zeros(3)), {}, "is a Parameter, whose class an item keeps"),
        (np.zeros(3), {"collate_fn": list}, "it needs batch_size, the default collation"),
        (np.zeros(3), {"batch_size": None}, "it needs batch_size"),
    ],
)
def test_true_says_why_it_cannot_be_had(dataset, options, reason):
    with pytest.raises(ConfigError, match=f"bulk is True and cannot be had .*{reason}"):
        DataLoader(dataset, bulk=True, **options)
    DataLoader(dataset, **options)  # it finds out by itself


def test_steps_taken_out_of_a_table_are_columns():
    with ReplayBuffer(10) as table:
        table.extend(x=np.arange(10))
        steps = table.get(range(10))
    loader = DataLoader(steps, batch_size=4, bulk=True)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
