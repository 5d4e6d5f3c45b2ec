"""Memory for a batch: elsewhere than in a slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from async_loader.pipeline.batches import arena


def test_large_batches_lie_where_one_that_was_dropped_lay():
    first = arena.empty((1 << 20,), np.uint8)
    where, kept = first.ctypes.data, first[:1]
    second = arena.empty((1 << 20,), np.uint8)
    assert second.ctypes.data != where
    del first
    assert arena.empty((1 << 20,), np.uint8).ctypes.data != where  # a view of it is still held
    del kept
    assert arena.empty((1 << 20,), np.uint8).ctypes.data == where


def test_stacking_without_a_slot_is_numpys_and_torchs():
    arrays = [np.arange(6).reshape(2, 3) + i for i in range(3)]
    assert (arena.stack(arrays) == np.stack(arrays)).all()
    assert (arena.stack([np.array(1), np.array(2)]) == [1, 2]).all()
    tensors = [torch.from_numpy(array) for array in arrays]
    assert arena.stack_tensors(tensors).equal(torch.stack(tensors))
    with pytest.raises(ValueError, match="shape"):
        arena.stack([np.zeros(2), np.zeros(3)])
