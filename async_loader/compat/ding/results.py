"""Results of a collate_fn, carried through the pipeline unchanged: containers, arrays, objects.

The pipeline itself would convert arrays to tensors. DI-engine's loader delivers the collate_fn's
result as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from async_loader.compat.ding.collate import is_tree_tensor

_ON_HOST = "index"
"""The field that the pipeline leaves on the CPU, for replay tables; DI-engine moves every field."""


@dataclass(slots=True)
class Kept:
    """A wrapper that hides a value from the pipeline, which sees neither container,
    array nor tensor.
    """

    value: Any


@dataclass(slots=True)
class KeepingCollate:
    """A user's collate_fn whose result is delivered unchanged.

    Parameters
    ----------
    collate_fn : callable
    moved : bool
        Batches go to a device: then tensors stay visible, and only values that stay on the CPU are
        hidden.
    pid : int
        The learner's process, in which results may alias the source's memory.
    """

    collate_fn: Callable[[list[Any]], Any]
    moved: bool
    pid: int

    def __call__(self, samples: list[Any]) -> Any:
        result = self.collate_fn(samples)
        if self.moved:
            return for_device(result)
        return Kept(owned(result) if os.getpid() == self.pid else result)


def owned(value: Any) -> Any:
    """Copy arrays, and tensors that are views of a larger one: their memory may be overwritten.

    Whole tensors are delivered without a copy, as in the original.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone() if _is_view(value) else value
    if type(value) is dict:
        return {key: owned(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(map(owned, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(owned, value))
    return value


def _is_view(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
        return False
    return value.untyped_storage().nbytes() != value.numel() * value.element_size()


def for_device(value: Any) -> Any:
    """Convert a result as DI-engine does before a move: tuples and namedtuples become lists,
    arrays stay on the CPU.

    Raises
    ------
    TypeError
        For objects that are neither containers nor tensors, arrays, numbers, strings or None.
    """
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "cpu" else Kept(value)
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    if isinstance(value, np.ndarray):
        return Kept(value.copy())
    if isinstance(
        value, np.generic | torch.nn.Module | torch.distributions.Distribution
    ) or is_tree_tensor(value):
        return Kept(value)
    if isinstance(value, Mapping):
        return {key: for_device(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [for_device(item) for item in value]
    raise TypeError(
        f"the collate_fn returned {type(value).__qualname__}, which cannot be moved to a device: "
        "return tensors, arrays, "
        "numbers, strings, None, or lists and dicts of these"
    )


def arrived(batch: Any, device: str) -> Any:
    """Convert a batch from the cuda queue to the form of DI-engine's."""
    if (
        isinstance(batch, Mapping)
        and isinstance(batch.get(_ON_HOST), torch.Tensor)
        and device != "fake"
    ):
        batch = {**batch, _ON_HOST: batch[_ON_HOST].to(device, non_blocking=True)}
    return _lists(batch, device)


def _lists(value: Any, device: str) -> Any:
    if isinstance(value, Kept):
        inner = value.value
        return (
            inner.to(device)
            if is_tree_tensor(inner) or isinstance(inner, torch.nn.Module | torch.Tensor)
            else inner
        )
    if isinstance(value, Mapping):
        return {key: _lists(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item, device) for item in value]
    return value
