"""Conversion between arrays and tensors. torch is imported inside functions only:
array paths run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.validation import check_ids

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

_PARALLEL_FROM = 32_768
"""Elements from which torch divides a copy among threads: at::internal::GRAIN_SIZE."""
_torch: Any = None  # set once torch is fully imported


def loaded_torch() -> Any:
    """Like `tree.loaded`, for torch; called for every value, so the result is cached."""
    global _torch
    if _torch is None:
        _torch = tree.loaded("torch")
    return _torch


def is_tensor(value: object) -> TypeIs[torch.Tensor]:
    """Whether ``value`` is a torch tensor.

    Does not import torch: without it there are no tensors.
    """
    torch = _torch or loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_types() -> tuple[type, ...]:
    """Return the exact types of plain tensors; empty if torch is not loaded."""
    torch = loaded_torch()
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)


_NUMPY: dict[Any, np.dtype[Any]] = {}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return numpy's dtype for a torch dtype;
    ``None`` for those numpy lacks (bfloat16, quantised, float8).
    """
    if not _NUMPY:
        import torch

        same = (
            "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 "
            "complex64 complex128"
        )
        _NUMPY.update({getattr(torch, name): np.dtype(name) for name in same.split()})
    return _NUMPY.get(dtype)


def to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """Convert a tensor to an array; shares memory if it is on the CPU."""
    array: np.ndarray[Any, Any] = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array


def as_array(value: object) -> np.ndarray[Any, Any] | None:
    """Convert an array, a numpy scalar or a tensor to an array; ``None`` for anything else, and for
    what `unheld` describes.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return None if is_masked(value) else np.asarray(value)
    if is_tensor(value) and numpy_dtype(value.dtype) is not None and is_dense(value):
        return to_numpy(value)
    return None


def to_array(value: object) -> np.ndarray[Any, Any]:
    """As `as_array`, and numpy converts any other value. Raises SchemaError for a masked array."""
    array = as_array(value)
    if array is None and is_masked(value):
        raise SchemaError(f"a value is {unheld(value)}")
    return np.asarray(value) if array is None else array


def to_ids(index: object) -> npt.NDArray[np.int64]:
    """Convert ids to int64, of any shape. Raises ConfigError for anything but integers."""
    array = to_array(index)
    check_ids(array)
    return array.astype(np.int64, copy=False)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a number in memory for each of its places."""
    return (
        not tensor.is_nested
        and tensor.device.type != "meta"
        and tensor.layout is loaded_torch().strided
    )


def said(tensor: torch.Tensor) -> str:
    """Describe the kind of a tensor for a message."""
    layout = (
        "nested"
        if tensor.is_nested
        else str(tensor.layout).removeprefix("torch.").replace("_", " ")
    )
    kind = "a tensor" if layout == "strided" else f"a {layout} tensor"
    where = "" if tensor.device.type == "cpu" else f" on device {tensor.device.type!r}"
    return f"{kind} of {tensor.dtype}{where}"


def unheld(value: object) -> str | None:
    """Describe a tensor or a masked array that numpy cannot hold as it is, and the remedy, as the
    end of a sentence; ``None`` for any other value.
    """
    if is_masked(value):
        return "a masked array, whose mask would be lost: give its .filled(number)"
    if not is_tensor(value):
        return None
    if value.is_nested:
        remedy = ".to_padded_tensor(0.0)"
    else:
        remedy = ".float()" if value.layout is loaded_torch().strided else ".to_dense()"
    return f"{said(value)}, which numpy cannot hold: give its {remedy}"


def is_masked(value: object) -> TypeIs[np.ma.MaskedArray[Any, Any]]:
    """Whether ``value`` is a masked array; numpy imports their module when it is first used."""
    masked = tree.loaded("numpy.ma") if isinstance(value, np.ndarray) else None
    return masked is not None and isinstance(value, masked.MaskedArray)


def check_device(device: object) -> None:
    """Raise ConfigError unless ``device`` is the name of a device that torch knows,
    or a ``torch.device``.
    """
    import torch

    if isinstance(device, torch.device):
        return
    if not isinstance(device, str):
        raise ConfigError(
            f"device={device!r}: give a name as in device='cuda:0' or 'cpu', or a torch.device"
        )
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r}: {str(error).splitlines()[0]}") from None


def to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor on the array's memory, which it keeps alive."""
    if _torch is not None:  # called for every field of a batch: an import statement costs more
        tensor: torch.Tensor = _torch.from_numpy(array)
        return tensor
    import torch as imported

    return imported.from_numpy(array)


def copied(value: Any) -> Any:
    """Return an array or a tensor on memory of its own; return everything else unchanged."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if is_tensor(value) else value


def copy_on_cpu(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy ``values`` into ``target``, of the same shape and dtype, in this thread alone.

    torch copies large tensors with several threads, which wait for each other: beside workers
    that takes tens of times as long as one thread does. Autograd learns of the change.
    """
    # detached: a copy of values with a gradient would give one to the target
    if target.numel() < _PARALLEL_FROM or numpy_dtype(target.dtype) is None:
        target.copy_(values.detach() if values.requires_grad else values)
        return
    import torch

    np.copyto(target.numpy(), to_numpy(values), casting="no")
    torch.autograd.graph.increment_version(target)


def is_bfloat16(value: object) -> bool:
    """Whether ``value`` is a bfloat16 tensor,
    the dtype that is common for weights and missing in numpy.
    """
    return is_tensor(value) and str(value.dtype) == "torch.bfloat16"


def to_bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the bits of a bfloat16 tensor as uint16."""
    import torch

    return to_numpy(tensor.contiguous().view(torch.int16)).view(np.uint16)


def from_bits(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The inverse of `to_bits`, on the array's memory."""
    import torch

    return to_tensor(array.view(np.int16)).view(torch.bfloat16)


def as_tensor(value: object) -> Any:
    """Convert arrays and numpy scalars of numeric dtype to tensors;
    return everything else unchanged.

    A read-only array is copied: a tensor cannot be read-only, and writing through it would be
    undefined.
    """
    array = np.asarray(value) if isinstance(value, np.generic) else value
    if (
        not isinstance(array, np.ndarray)
        or array.dtype.kind not in "biufc"
        or array.dtype.char in "gG"
    ):
        return value
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return to_tensor(array)


def of_columns(columns: dict[str, Any], leave: Callable[[Any], bool]) -> dict[str, Any]:
    """Return a batch with `as_tensor` applied to every leaf, in half the time if it is flat.

    Parameters
    ----------
    leave : callable
        As in `tree.transform`.
    """
    import torch

    convert, made = torch.from_numpy, type(columns)()
    for name, value in columns.items():
        if leave(name):
            made[name] = value
            continue
        if type(value) is np.ndarray and value.flags.writeable:
            try:
                made[name] = convert(value)
                continue
            except (TypeError, ValueError):  # what torch does not take as it stands
                pass
        made[name] = tree.transform(value, as_tensor, leave=leave)
    return made


def to_parts(tensor: torch.Tensor) -> tuple[Any, str]:
    """Return the parts of a tensor for pickling: an array on its memory,
    and its dtype if numpy lacks it.
    """
    tensor = tensor.detach().cpu()
    if numpy_dtype(tensor.dtype) is not None:
        return to_numpy(tensor), ""
    import torch

    # numpy has no such dtype: send the bytes. The view needs contiguous memory and at least one
    # dimension.
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return (raw, tuple(tensor.shape)), str(tensor.dtype).removeprefix("torch.")


def from_parts(array: Any, dtype: str) -> torch.Tensor:
    """The inverse of `to_parts`.

    Shares the array's memory if that is writable and numpy has the dtype.
    """
    if not dtype:
        tensor: torch.Tensor = as_tensor(array)
        return tensor
    import torch

    raw, shape = array
    if not raw.size:  # torch cannot view an empty array as another dtype
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(raw.copy()).view(getattr(torch, dtype)).reshape(shape)


def reduced(obj: object) -> Any:
    """Reduce a tensor of any class with its memory out of band; NotImplemented for other objects,
    and for what torch's own reduction, or that of the class, does better.
    """
    torch = loaded_torch()
    if torch is None or not isinstance(obj, torch.Tensor):
        return NotImplemented
    kind = type(obj)
    if obj.is_meta or obj.is_nested or obj.is_quantized:
        return NotImplemented
    if obj.layout is not torch.strided:
        # torch's own rebuild keeps each one for a check that only torch.load makes
        known = kind is torch.Tensor and obj.layout in (torch.sparse_coo, torch.sparse_csr)
        if not known or obj.requires_grad:
            return NotImplemented
        listed = obj.to_sparse_coo().coalesce()
        return _from_sparse, (listed.indices(), listed.values(), tuple(obj.shape), obj.layout)
    if kind is torch.Tensor and not obj.requires_grad:
        return from_parts, to_parts(obj)
    plain = kind in (torch.Tensor, torch.nn.Parameter)
    if not plain and kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        parts = to_parts(obj.as_subclass(torch.Tensor))
        return _from_subclass, (kind, *parts, {} if plain else vars(obj), obj.requires_grad)


def _from_subclass(
    kind: Any, array: Any, dtype: str, attributes: dict[str, Any], requires_grad: bool
) -> Any:
    """Rebuild a leaf of this class on the array's memory. The graph that computed it is not sent,
    as with torch's own workers.
    """
    tensor = from_parts(array, dtype)
    if kind is loaded_torch().nn.Parameter:
        return kind(tensor, requires_grad)
    tensor = tensor.as_subclass(kind)
    vars(tensor).update(attributes)
    return tensor.requires_grad_() if requires_grad else tensor


def _from_sparse(
    indices: torch.Tensor, values: torch.Tensor, size: tuple[int, ...], layout: Any
) -> Any:
    import torch

    made = torch.sparse_coo_tensor(indices, values, size, is_coalesced=True, check_invariants=False)
    return made if layout is torch.sparse_coo else made.to_sparse(layout=layout)
