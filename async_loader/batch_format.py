"""The formats of a batch: numpy arrays, torch tensors or a TensorDict. CPU data is not copied."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, require
from async_loader.public_names import set_public_names

if TYPE_CHECKING:
    import torch

__all__ = [
    "FORMATS",
    "BatchFormat",
]
set_public_names(globals())

BatchFormat = Literal["numpy", "torch", "tensordict"]
"""The container of a batch: (nested) dicts of arrays or tensors, or a ``tensordict.TensorDict``."""

FORMATS: Final[tuple[str, ...]] = get_args(BatchFormat)


def checked(batch_format: object, device: object = None) -> BatchFormat:
    """Check a requested batch format before any rows are drawn.

    Parameters
    ----------
    batch_format : "numpy" | "torch" | "tensordict"
    device : str | torch.device, optional
        Target device of the tensors. A device implies tensors: ``"numpy"`` becomes ``"torch"``.

    Returns
    -------
    "numpy" | "torch" | "tensordict"

    Raises
    ------
    ConfigError
        For an unknown format, for a device that is a number, a bool or unknown to torch, and for
        "tensordict" if the package tensordict is not installed.
    """
    if batch_format not in FORMATS:
        raise ConfigError(f"batch_format={batch_format!r}: give 'numpy', 'torch' or 'tensordict'")
    if batch_format != "numpy" or device is not None:
        require("torch")
    if device is not None:
        tensors.check_device(device)
    if batch_format == "tensordict":
        _tensordict()
        return "tensordict"
    return "torch" if batch_format == "torch" or device is not None else "numpy"


def convert(
    batch: object, batch_format: BatchFormat, device: str | torch.device | None = None
) -> Any:
    """Convert a batch of arrays to another format.

    Parameters
    ----------
    batch : (nested) dict of arrays [rows, ...]
        It owns its memory: tensors on the CPU share it.
    batch_format : "numpy" | "torch" | "tensordict"
        As `checked` returned it.
    device : str | torch.device, optional
        Device of the tensors; by default the CPU.

    Returns
    -------
    dict | TensorDict
        Arrays without a torch dtype (text, dates) stay arrays. A TensorDict has
        ``batch_size=[rows]``.
    """
    if batch_format == "numpy":
        return batch
    converted = tree.transform(batch, lambda leaf: _tensor(leaf, device))
    if batch_format == "torch":
        return converted
    return _tensordict().TensorDict(converted, batch_size=[_rows(batch)], device=device)


def finisher(batch_format: BatchFormat) -> Callable[[Any], Any] | None:
    """Return a converter from a loader's batch of tensors to ``batch_format``;
    ``None`` if none is needed.

    Arrays share and keep the memory of the tensors. Tensors of a dtype that numpy lacks (bfloat16)
    stay tensors.
    """
    if batch_format == "torch":
        return None
    if batch_format == "numpy":
        return partial(tree.transform, function=_array)
    return partial(convert, batch_format="tensordict")


def _array(leaf: object) -> Any:
    array = tensors.as_array(leaf)
    return leaf if array is None else array


def _tensor(leaf: object, device: str | torch.device | None) -> Any:
    made = tensors.as_tensor(leaf)
    return made if device is None or not tensors.is_tensor(made) else made.to(device)


def _rows(batch: object) -> int:
    return len(next(tree.leaves(batch, tree.structure_of(batch)), np.empty(0)))


def _tensordict() -> Any:
    try:
        return importlib.import_module("tensordict")
    except ImportError as error:
        raise ConfigError(
            f"batch_format='tensordict' needs the package tensordict ({error}): pip install "
            "tensordict, or 'torch'"
        ) from None
