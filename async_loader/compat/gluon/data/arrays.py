"""In which library's arrays batches come: torch's, numpy's or mxnet's. torch and mxnet are imported when they are needed."""

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
    """What batchify functions and loaders give from now on, in this process, where they are not told.

    Parameters
    ----------
    array_type : {'torch', 'numpy', 'mxnet'}
    """
    global _default
    _default = checked(array_type)


def default_array_type() -> str:
    """What `set_array_type` said last; at first ``"torch"``."""
    return _default


def checked(array_type: str) -> str:
    """The same, when it is one that there is and that is installed.

    Raises
    ------
    ConfigError
        When there is no such type of arrays.
    MissingExtra
        When mxnet is not installed.
    """
    if array_type not in ARRAY_TYPES:
        raise ConfigError(f"array_type is {array_type!r}: it is 'torch', 'numpy' or 'mxnet'")
    if array_type == "mxnet":
        _mxnet()
    return array_type


def finished(array: Any, array_type: str, shared: bool) -> Any:
    """An array as what is wanted: zero-copy where the types allow.

    Parameters
    ----------
    array : ndarray of numbers
    array_type : str
    shared : bool
        In memory that other processes can map, for tensors: they are sent then without a copy.
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
    """A batch with all its arrays and tensors as ``array_type``; what else is in it stays as it is."""
    if array_type == "torch" and type(batch) is list and all(map(tensors.is_tensor, batch)):
        return batch  # as what is gathered in bulk comes
    return mapped(batch, lambda leaf: _converted(leaf, array_type))


def mapped(batch: Any, fn: Callable[[Any], Any]) -> Any:
    """``fn`` of every leaf; lists, tuples (also named ones) and dicts stay what they are."""
    if isinstance(batch, dict):
        return {key: mapped(value, fn) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, fn) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, fn) for value in batch)
    return fn(batch)


def _converted(leaf: Any, array_type: str) -> Any:
    if tensors.is_tensor(leaf):
        return leaf if array_type == "torch" else finished(tensors.to_numpy(leaf), array_type, False)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return finished(leaf, array_type, False)
    return leaf


def is_array(value: object) -> bool:
    """A tensor or an NDArray: an array of the library that trains, rather than numpy's."""
    return tensors.is_tensor(value) or hasattr(value, "asnumpy")


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Anything that is, or can be made, an array of numpy's."""
    if tensors.is_tensor(value):
        return tensors.to_numpy(value)
    return np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch with arrays of mxnet's, on its way between processes.

    mxnet 2 reads an array in a thread with the same shape semantics as the one that wrote it, or
    not at all. So they travel as arrays of numpy's, and the consumer's thread makes them again.
    """

    batch: Any

    def received(self) -> Any:
        """The batch as it was, in the process that is to have it."""
        return mapped(self.batch, _received)


@dataclass(frozen=True, slots=True)
class _SentArray:
    array: np.ndarray[Any, Any]
    numpys: bool


def sent(batch: Any) -> Any:
    """The batch, or a `Sent` where arrays of mxnet's are in it."""
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
    """Whether its gluon gives and takes ``mxnet.numpy.ndarray``, as that of version 2."""
    return not getattr(mxnet, "__version__", "1.").startswith(("0.", "1."))


def _module(numpys: bool) -> Any:
    return _mxnet().np if numpys else _mxnet().nd


def _mxnet() -> Any:
    try:
        import mxnet
    except ImportError as error:
        raise MissingExtra(
            "array_type is 'mxnet', which is not installed: pip install mxnet, or take 'torch' or 'numpy'"
        ) from error
    return mxnet
