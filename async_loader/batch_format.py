"""The formats of a batch: numpy arrays, torch tensors, a TensorDict. Copies nothing on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError

__all__ = [
    "FORMATS",
    "BatchFormat",
]

BatchFormat = Literal["numpy", "torch", "tensordict"]
"""What a batch is made of: arrays or tensors in (nested) dicts, or tensors in a ``tensordict.TensorDict``."""

FORMATS: Final[tuple[str, ...]] = get_args(BatchFormat)


def checked(batch_format: object, device: object = None) -> BatchFormat:
    """Check what a batch is to be, before anything is drawn.

    Parameters
    ----------
    batch_format : "numpy" | "torch" | "tensordict"
    device : str | torch.device, optional
        Where the tensors are to be. A device implies tensors: ``"numpy"`` becomes ``"torch"``.

    Returns
    -------
    "numpy" | "torch" | "tensordict"

    Raises
    ------
    ConfigError
        For another word, for a device that is a number or a bool, or that torch does not know; and for "tensordict"
        where the package tensordict is not installed.
    """
    if batch_format not in FORMATS:
        raise ConfigError(f"batch_format={batch_format!r}: give 'numpy', 'torch' or 'tensordict'")
    if device is not None:
        tensors.check_device(device)
    if batch_format == "tensordict":
        _tensordict()
        return "tensordict"
    return "torch" if batch_format == "torch" or device is not None else "numpy"


def convert(batch: Any, batch_format: BatchFormat, device: Any = None) -> Any:
    """A batch of arrays in another format.

    Parameters
    ----------
    batch : (nested) dict of arrays [rows, ...]
        Its own memory: tensors on the CPU share it.
    batch_format : "numpy" | "torch" | "tensordict"
        As `checked` returned it.
    device : str | torch.device, optional
        Of the tensors; by default the CPU.

    Returns
    -------
    dict | TensorDict
        Arrays of what torch has no dtype for (text, dates) stay arrays. A TensorDict has ``batch_size=[rows]``.
    """
    if batch_format == "numpy":
        return batch
    converted = tree.transform(batch, lambda leaf: _tensor(leaf, device))
    if batch_format == "torch":
        return converted
    return _tensordict().TensorDict(converted, batch_size=[_rows(batch)], device=device)


def finisher(batch_format: BatchFormat) -> Callable[[Any], Any] | None:
    """What makes a loader's batch, which is of tensors, one of ``batch_format``; ``None`` where there is nothing to do.

    Arrays share the memory of the tensors and keep it. Tensors of a dtype that numpy lacks (bfloat16) stay tensors.
    """
    if batch_format == "torch":
        return None
    if batch_format == "numpy":
        return _arrays
    return _tensor_dict


def _arrays(batch: Any) -> Any:
    return tree.transform(batch, _array)


def _array(leaf: Any) -> Any:
    array = tensors.as_array(leaf)
    return leaf if array is None else array


def _tensor_dict(batch: Any) -> Any:
    return convert(batch, "tensordict")


def _tensor(leaf: Any, device: Any) -> Any:
    made = tensors.as_tensor(leaf)
    return made if device is None or not tensors.is_tensor(made) else made.to(device)


def _rows(batch: Any) -> int:
    return len(next(tree.leaves(batch, tree.structure_of(batch)), np.empty(0)))


def _tensordict() -> Any:
    try:
        return importlib.import_module("tensordict")
    except ImportError as error:
        raise ConfigError(
            f"batch_format='tensordict' needs the package tensordict ({error}): pip install tensordict, or 'torch'"
        ) from None
