"""Batches as numpy arrays, as tensors, as a TensorDict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from async_loader.batch_format import checked, convert
from async_loader.errors import ConfigError


def batch():
    return {
        "obs": {"x": np.zeros((3, 2), np.float32)},
        "name": np.array(["a", "b", "c"]),
        "index": np.arange(3),
    }


@pytest.mark.parametrize(
    ("batch_format", "device", "text"),
    [
        ("jax", None, "'numpy', 'torch' or 'tensordict'"),
        ("numpy", True, "device=True: give a name"),
        ("torch", 0, "device=0: give a name"),
        ("torch", "tpu9", "device='tpu9'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_drawn(batch_format, device, text):
    with pytest.raises(ConfigError, match=text):
        checked(batch_format, device)


def test_tensors_share_the_memory_of_the_arrays():
    given = batch()
    made = convert(given, "torch")
    made["obs"]["x"][1, 1] = 7
    assert given["obs"]["x"][1, 1] == 7
    assert made["index"].dtype == torch.int64
    assert made["name"] is given["name"], "torch has no text"


def test_a_tensordict_has_the_rows_as_its_batch_size():
    tensordict = pytest.importorskip("tensordict")
    given = batch()
    made = convert(given, checked("tensordict"))
    assert isinstance(made, tensordict.TensorDict)
    assert made.batch_size == torch.Size([3])
    assert made["obs", "x"].shape == (3, 2)
