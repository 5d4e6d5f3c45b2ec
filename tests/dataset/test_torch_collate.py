"""Collation: what torch's default_collate gives, item for item and error for error."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest
import torch
from dataset_rig import same
from torch.utils.data import default_collate as theirs

from async_loader import DataLoader
from async_loader.compat.torch import DataLoader as TorchLoader
from async_loader.dataset.torch_collate import default_collate
from async_loader.pipeline.batches import arena

Point = collections.namedtuple("Point", "x y")
LEAVES = [
    *(
        np.array([[1, 2], [3, 4]], dtype)
        for dtype in ("?", "u1", "i8", "f2", "f4", "f8", "c8", "u8")
    ),
    *(np.dtype(dtype).type(1) for dtype in ("?", "u1", "i2", "i8", "f2", "f4", "f8", "c16")),
    np.array(2.5),
    np.zeros((0, 3)),
    torch.tensor(1),
    torch.ones(2, 3),
    torch.ones(2, dtype=torch.bfloat16),
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    1,
    2.5,
    True,
    "text",
    b"bytes",
    Point(1, np.zeros(2)),
    (1, 2.0),
    [torch.ones(1), "x"],
    {"a": 1, "b": {"c": np.zeros(3)}},
    collections.OrderedDict(a=1.0),
]


# torch's, of numpy 1.26
@pytest.mark.filterwarnings("ignore:.*'np.bool_' scalars to be interpreted:DeprecationWarning")
@pytest.mark.parametrize("in_slot", [False, True])
@pytest.mark.parametrize(
    "leaf", LEAVES, ids=lambda leaf: f"{type(leaf).__name__}-{getattr(leaf, 'dtype', '')}"
)
def test_it_gives_what_torch_gives(leaf, in_slot):
    batch = [leaf] * 3
    with arena.within(arena.Arena(np.zeros(4096, np.uint8)) if in_slot else None):
        same(default_collate(batch), theirs(batch))


@pytest.mark.parametrize(
    "batch",
    [
        [np.zeros(2), np.zeros(3)],
        [torch.zeros(2), torch.zeros(3)],
        [np.array(["a"])] * 2,
        [np.zeros(2, object)] * 2,
        [np.zeros(2, ">f4")] * 2,
        [object(), object()],
        [None, None],
        [(1, 2), (1,)],
        [{"a": 1}, {"b": 1}],
        [np.uint64(3)] * 2,
        [np.float32(1), "x"],
        [torch.eye(2).to_sparse()] * 2,
    ],
    ids=lambda batch: type(batch[0]).__name__,
)
def test_it_fails_as_torch_fails_and_says_what_does_not_fit(batch):
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is
        theirs(batch)
    with arena.within(arena.Arena(np.zeros(4096, np.uint8))), pytest.raises(expected.type) as found:
        default_collate(batch)
    assert str(expected.value.args[0]) in found.value.args[0]
    assert re.match("(a sample|field '.*') is .* sample", found.value.args[0])


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (
            [{"info": {"obs": np.zeros(n)}} for n in (2, 2, 3)],
            r"'info\.obs' is float64\[2\] in sample 0 .* float64\[3\] in sample 2",
        ),
        ([{"obs": torch.zeros(n)} for n in (1, 2)], r"'obs' is float32\[1\] .* float32\[2\]"),
        ([{"obs": 1}, {"act": 1}], "'obs' is in sample 0 of the batch, and not in sample 1"),
        ([{"obs": 1}, {"obs": "x"}], "'obs' is int in sample 0 .* str in sample 1"),
        ([{"obs": 1}, {"obs": None}], "'obs' is int in sample 0 .* NoneType in sample 1"),
        ([{"obs": {"a": 1}}, {"obs": 1}], "'obs' is dict of 1 in sample 0 .* int in sample 1"),
        ([{"obs": [1, 2]}, {"obs": [1]}], "'obs' is list of 2 in sample 0 .* list of 1 in"),
        ([(0, {"obs": object()})] * 2, r"'1\.obs' is object in each sample"),
    ],
)
def test_the_field_that_does_not_fit_is_named(samples, said):
    for loader in (DataLoader, TorchLoader):
        with pytest.raises((RuntimeError, KeyError, TypeError), match=said):
            next(iter(loader(samples, batch_size=len(samples))))
