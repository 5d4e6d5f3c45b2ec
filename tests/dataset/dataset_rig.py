"""Whether two batches are the same: structure, types, dtypes, values."""

from __future__ import annotations

import numpy as np
import torch


def same(one, two, *, kinds=True):
    """Assert it. NaNs equal each other."""
    if kinds:
        assert type(one) is type(two), (type(one), type(two))
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert (
            torch.equal(one.nan_to_num(7.5), two.nan_to_num(7.5))
            if one.is_floating_point()
            else torch.equal(one, two)
        )
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        same(list(one.values()), list(two.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        assert one == two
