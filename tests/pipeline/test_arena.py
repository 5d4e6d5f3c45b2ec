"""Memory for a batch: elsewhere than in a slot."""

from __future__ import annotations

import numpy as np

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
