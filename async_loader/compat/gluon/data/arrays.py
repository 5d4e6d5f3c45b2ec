"""Array types of batches: torch, numpy or mxnet. torch and mxnet are imported when first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, MissingExtra

ARRAY_TYPES = ("torch", "numpy", "mxnet")

_default = "torch"


def set_array_type(array_type: str) -> None:
    """Set the default array type of batchify functions and loaders in this process.

    Parameters
    ----------
    array_type : {'torch', 'numpy', 'mxnet'}
    """
    global _default
    _default = checked(array_type)


def default_array_type() -> str:
    """Return the default array type; initially ``"torch"``."""
    return _default


def checked(array_type: str) -> str:
    """Return the array type if it is known and installed.

    Raises
    ------
    ConfigError
        For an unknown array type.
    MissingExtra
        If mxnet is not installed.
    """
    if array_type not in ARRAY_TYPES:
        raise ConfigError(f"array_type is {array_type!r}: it is 'torch', 'numpy' or 'mxnet'")
    if array_type == "mxnet":
        _mxnet()
    return array_type


def finished(array: Any, array_type: str, shared: bool) -> Any:
    """Convert an array to the requested type, without a copy if the types allow it.

    Parameters
    ----------
    array : ndarray of numbers
    array_type : str
    shared : bool
        Put tensors into memory that other processes can map, so that they are sent without a copy.
    """
    if tensors.is_tensor(array):  # of a dtype that numpy lacks
        return array
    if array_type == "numpy":
        return array
    if array_type == "mxnet":
        return _module(_gives_numpy(_mxnet())).array(array, dtype=array.dtype)
    tensor = tensors.as_tensor(array)
    return tensor.share_memory_() if shared else tensor


def converted(batch: Any, array_type: str) -> Any:
    """Convert all arrays and tensors of a batch to ``array_type``; other values are unchanged."""
    if array_type == "torch" and type(batch) is list and all(map(tensors.is_tensor, batch)):
        return batch  # the form of batches gathered in bulk
    return mapped(batch, lambda leaf: _converted(leaf, array_type))


def mapped(batch: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply ``fn`` to every leaf; lists, tuples (also named ones) and dicts keep their type."""
    if isinstance(batch, dict):
        return {key: mapped(value, fn) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, fn) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, fn) for value in batch)
    return fn(batch)


def _converted(leaf: Any, array_type: str) -> Any:
    if tensors.is_tensor(leaf):
        return (
            leaf if array_type == "torch" else finished(tensors.to_numpy(leaf), array_type, False)
        )
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return finished(leaf, array_type, False)
    return leaf


def is_array(value: object) -> bool:
    """Whether the value is a tensor or an NDArray, that is, an array of the training library."""
    return tensors.is_tensor(value) or hasattr(value, "asnumpy")


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Whether the value is a numpy array or can be converted to one."""
    if tensors.is_tensor(value):
        return tensors.to_numpy(value)
    return np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch with mxnet arrays in transit between processes.

    mxnet 2 can read an array only in a thread with the same shape semantics as the writer's. So
    they are sent as numpy arrays, and the consumer's thread converts them back.
    """

    batch: Any

    def received(self) -> Any:
        """Return the original batch, in the receiving process."""
        return mapped(self.batch, _received)


@dataclass(frozen=True, slots=True)
class _SentArray:
    array: np.ndarray[Any, Any]
    numpys: bool


def sent(batch: Any) -> Any:
    """Return the batch, wrapped in a `Sent` if it has mxnet arrays."""
    if tensors.loaded("mxnet") is None:
        return batch
    found: list[bool] = []

    def leave(leaf: Any) -> Any:
        if not hasattr(leaf, "asnumpy") or getattr(leaf, "stype", "default") != "default":
            return leaf
        found.append(True)
        return _SentArray(leaf.asnumpy(), type(leaf).__module__.startswith("mxnet.numpy"))

    left = mapped(batch, leave)
    return Sent(left) if found else batch


def _received(leaf: Any) -> Any:
    if type(leaf) is not _SentArray:
        return leaf
    return _module(leaf.numpys).array(leaf.array, dtype=leaf.array.dtype)


def _gives_numpy(mxnet: Any) -> bool:
    """Whether this gluon uses ``mxnet.numpy.ndarray``, as version 2 does."""
    return not getattr(mxnet, "__version__", "1.").startswith(("0.", "1."))


def _module(numpys: bool) -> Any:
    return _mxnet().np if numpys else _mxnet().nd


def _mxnet() -> Any:
    try:
        import mxnet
    except ImportError as error:
        raise MissingExtra(
            "array_type is 'mxnet', which is not installed: pip install mxnet, or take 'torch' or "
            "'numpy'"
        ) from error
    return mxnet
