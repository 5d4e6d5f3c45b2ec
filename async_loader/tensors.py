"""Where arrays become tensors, and back. Imports torch inside functions only, so that array paths run without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor. Does not import torch: where it is not loaded nothing can be one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_types() -> tuple[type, ...]:
    """The exact types of plain tensors; none where torch is not loaded."""
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)


_NUMPY: dict[Any, np.dtype[Any]] = {}


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Numpy's dtype for a torch dtype; ``None`` for those numpy lacks (bfloat16, quantised, float8)."""
    if not _NUMPY:
        import torch

        same = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128"
        _NUMPY.update({getattr(torch, name): np.dtype(name) for name in same.split()})
    return _NUMPY.get(dtype)


def to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor as an array; shares memory when it is on the CPU."""
    array: np.ndarray[Any, Any] = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """``value`` as an array when it is an array, a numpy scalar or a tensor; ``None`` otherwise."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if is_tensor(value) and numpy_dtype(value.dtype) is not None:
        return to_numpy(value)
    return None


def to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor on the array's memory, which it keeps alive."""
    import torch

    return torch.from_numpy(array)


def as_tensor(value: Any) -> Any:
    """Arrays and numpy scalars of numeric dtype as tensors; everything else as it is.

    A read-only array is copied: a tensor cannot be read-only, and writing through it would be undefined.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc" or value.dtype.char in "gG":
        return value
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return to_tensor(value)


def to_parts(tensor: torch.Tensor) -> tuple[Any, str]:
    """What a tensor is made of for pickling: an array on its memory, and the dtype where numpy lacks it."""
    tensor = tensor.detach().cpu()
    if numpy_dtype(tensor.dtype) is not None:
        return to_numpy(tensor), ""
    import torch

    # numpy has no such dtype: send the bytes. The view needs contiguous memory and at least one dimension.
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return (raw, tuple(tensor.shape)), str(tensor.dtype).removeprefix("torch.")


def from_parts(array: Any, dtype: str) -> torch.Tensor:
    """The inverse of `to_parts`. Shares the array's memory when that is writable and numpy has the dtype."""
    if not dtype:
        tensor: torch.Tensor = as_tensor(array)
        return tensor
    import torch

    raw, shape = array
    if not raw.size:  # torch cannot view nothing as anything else
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(raw.copy()).view(getattr(torch, dtype)).reshape(shape)
