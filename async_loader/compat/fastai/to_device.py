"""Moves of whole batches to page-locked memory or to a device. Containers keep their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from async_loader import tree


def parse(device: Any) -> torch.device | None:
    """Convert a user's device: None, a name, a number, a torch.device."""
    return None if device is None else torch.device(device)


def moved(batch: Any, device: torch.device) -> Any:
    """Move every tensor of the batch to ``device``.

    Objects with a ``to_device`` method move themselves.
    """
    return _each(
        batch,
        lambda tensor: tensor.to(device, non_blocking=True),
        lambda other: _by_itself(other, device),
    )


def _by_itself(value: Any, device: torch.device) -> Any:
    return value.to_device(device) if hasattr(value, "to_device") else value


def pinned(batch: Any) -> Any:
    """Copy every tensor of the batch to page-locked memory, if there is an accelerator."""
    if not torch.accelerator.is_available():
        return batch
    return _each(batch, lambda tensor: tensor.pin_memory(), lambda other: other)


def _each(value: Any, on_tensor: Callable[[Any], Any], on_other: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return on_tensor(value)
    if isinstance(value, Mapping):
        items = {key: _each(item, on_tensor, on_other) for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        parts = [_each(item, on_tensor, on_other) for item in value]
        return type(value)(*parts) if tree.is_namedtuple(value) else type(value)(parts)
    return on_other(value)


def move_transforms(transforms: Any, device: Any) -> None:
    """Move transforms with a method ``to`` as a whole,
    others by the attributes that ``parameters`` names.
    """
    for transform in transforms:
        if callable(getattr(transform, "to", None)):
            transform.to(device)
            continue
        names = getattr(transform, "parameters", None) or ()
        for name in [names] if isinstance(names, str) else names:
            value = getattr(transform, name)
            if hasattr(value, "to"):
                setattr(transform, name, value.to(device))
