"""Collation of samples with different shapes: fields that cannot be stacked stay lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from async_loader.compat.ding.collate import as_tensor, numbers, positions, rebuilt


def diff_shape_collate(batch: Sequence[Any]) -> Any:
    """Collate like `default_collate`,
    but leave a field as a list if it is ``None`` in a sample or differs in shape.

    Tensors and arrays of shape ``(1,)`` become ``(B, 1)`` here, and strings stay lists.

    Raises
    ------
    TypeError
        For types without a rule.
    ValueError
        For sequences of different lengths.
    """
    if not len(batch):
        raise IndexError("the batch has 0 samples: collate at least one")
    first = batch[0]
    if any(sample is None for sample in batch) or isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, torch.Tensor | np.ndarray | np.generic):
        tensors = [
            value if isinstance(value, torch.Tensor) else as_tensor(value) for value in batch
        ]
        return torch.stack(tensors) if len({t.shape for t in tensors}) == 1 else tensors
    if isinstance(first, bool | int | float):
        return numbers(batch)
    if isinstance(first, Mapping):
        return {key: diff_shape_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        return rebuilt(first, [diff_shape_collate(column) for column in positions(batch)])
    raise TypeError(
        f"a batch of {type(first).__qualname__} cannot be collated: give tensors, arrays, numbers "
        "or None"
    )
