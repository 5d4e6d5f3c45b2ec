"""fastai's collation, conversion and type retention in the drop-in module."""

from __future__ import annotations

import collections
from collections import namedtuple

import numpy as np
import pytest
import torch

from async_loader.compat.fastai import collate_error, fa_collate, fa_convert
from async_loader.compat.fastai.batch_maker import retain_types

Pair = namedtuple("Pair", "a b")


class Image(torch.Tensor):
    """A tensor type with an attribute, like fastai's TensorBase."""

    def set_meta(self, other):
        self.size_was = getattr(other, "size_was", None)


class Boxes(tuple):
    pass


def test_sequences_keep_their_type_and_leaves_are_stacked():
    samples = [(1, (2.0, [np.zeros(2), torch.ones(3)])), (3, (4.0, [np.zeros(2), torch.ones(3)]))]
    batch = fa_collate(samples)
    assert (type(batch), type(batch[1]), type(batch[1][1])) == (tuple, tuple, list)
    assert batch[0].tolist() == [1, 3]
    dtypes = [batch[0].dtype, batch[1][0].dtype, batch[1][1][0].dtype, batch[1][1][1].dtype]
    assert dtypes == [torch.int64, torch.float64, torch.float64, torch.float32]
    assert batch[1][1][1].shape == (2, 3)


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2], torch.int64),
        ([0.5, 1], torch.float64),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.array(1), np.array(2)], torch.int64),
        ([np.zeros(2, np.uint8), np.ones(2, np.uint8)], torch.uint8),
        ([np.zeros(2, np.float32), np.ones(2)], torch.float64),
    ],
)
def test_leaves(samples, dtype):
    batch = fa_collate(samples)
    assert batch.dtype == dtype
    assert batch.tolist() == [np.asarray(sample).tolist() for sample in samples]


@pytest.mark.parametrize(
    "samples", [[None], [object()], [np.array(["a"])] * 2], ids=["None", "object", "strings"]
)
def test_what_no_rule_covers_is_a_type_error(samples):
    with pytest.raises(TypeError, match="must contain tensors, numpy arrays"):
        fa_collate(samples)


def test_conversion_touches_arrays_only():
    batch = fa_convert(
        (
            1,
            "x",
            [np.zeros(2), None],
            {"a": np.float32(1), "t": (np.zeros(1),)},
            Pair(np.zeros(1), 1j),
        )
    )
    assert type(batch) is tuple
    assert batch[:2] == (1, "x")
    assert torch.is_tensor(batch[2][0])
    assert batch[2][1] is None
    assert batch[3]["a"].dtype == torch.float32
    assert type(batch[3]["t"]) is list
    assert torch.is_tensor(batch[4].a)
    assert fa_convert("abc") == "abc"
    assert fa_convert(np.array(["a"])).tolist() == ["a"]


def collated(samples):
    """Collate like create_batch."""
    try:
        return fa_collate(samples)
    except Exception as error:
        collate_error(error, samples)


# -- errors that explain ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [(torch.zeros(2), torch.zeros(3)), (torch.zeros(2), torch.zeros(4))],
            ["field '1'", "[3]", "[4]", "sample 1"],
        ),
        (
            [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(5)}],
            ["field 'x'", "[5]", "sample 2"],
        ),
        ([torch.zeros(2), torch.zeros(3)], ["a sample is", "[2]", "[3]"]),
        ([Pair(1, {"z": torch.zeros(2)}), Pair(1, {"z": torch.zeros(3)})], ["field '1.z'"]),
    ],
    ids=["tuple", "dict", "bare", "namedtuple"],
)
def test_a_mismatch_is_told_with_its_field_and_shapes(samples, words):
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        collated(samples)
    for word in [*words, "after_item"]:
        assert word in str(caught.value)


# -- types that survive ----------------------------------------------------------------------------


def test_subtypes_of_the_collated_types_are_kept():
    image = torch.zeros(2).as_subclass(Image)
    image.size_was = 5
    kept = retain_types(torch.ones(2), image)
    assert type(kept) is Image
    assert kept.size_was == 5
    assert [type(part) for part in retain_types((torch.ones(1), torch.ones(1)), (image, 1))] == [
        Image,
        torch.Tensor,
    ]
    assert type(retain_types([torch.ones(1)], (image,))[0]) is Image
    boxes = retain_types((torch.ones(1), 1), Boxes((image, 1)))
    assert type(boxes) is Boxes
    assert type(boxes[0]) is Image
    assert type(retain_types({"a": 1}, collections.OrderedDict(a=1))) is collections.OrderedDict
