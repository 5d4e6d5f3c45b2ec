"""Array types of batches: torch or numpy. torch is imported when it is first needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError

ARRAY_TYPES = ("torch", "numpy")

_default = "torch"


def set_array_type(array_type: str) -> None:
    """Set the default array type of batchify functions and loaders in this process.

    Parameters
    ----------
    array_type : {'torch', 'numpy'}
    """
    global _default
    _default = checked(array_type)


def default_array_type() -> str:
    """Return the default array type; initially ``"torch"``."""
    return _default


def checked(array_type: str) -> str:
    """Return the array type if it is known.

    Raises
    ------
    ConfigError
    """
    if array_type not in ARRAY_TYPES:
        raise ConfigError(f"array_type is {array_type!r}: it is 'torch' or 'numpy'")
    return array_type


def finished(value: Any, array_type: str, shared: bool = False) -> Any:
    """Convert an array or a tensor to the requested type, without a copy if the types allow it.

    Other values are unchanged, as are tensors of a dtype that numpy lacks.

    Parameters
    ----------
    shared : bool
        Put tensors into memory that other processes can map, so that they are sent without a copy.
    """
    if array_type == "torch":
        tensor = tensors.as_tensor(value)
        return tensor.share_memory_() if shared else tensor
    if tensors.is_tensor(value) and tensors.numpy_dtype(value.dtype) is not None:
        return tensors.to_numpy(value)
    return value


def converted(batch: Any, array_type: str) -> Any:
    """Convert all arrays and tensors of a batch to ``array_type``; other values are unchanged."""
    if array_type == "torch" and type(batch) is list and all(map(tensors.is_tensor, batch)):
        return batch  # the form of batches gathered in bulk
    return tree.transform(batch, lambda leaf: finished(leaf, array_type))


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Return the value as a numpy array."""
    return tensors.to_numpy(value) if tensors.is_tensor(value) else np.asarray(value)
