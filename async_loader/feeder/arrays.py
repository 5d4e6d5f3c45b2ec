"""Arrays of a call as one block of bytes, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.wire import specs_of, tensors_of
from async_loader.feeder.wire.control import TensorSpec

Array = npt.NDArray[Any]


def packed(arrays: Mapping[str, Array]) -> tuple[tuple[TensorSpec, ...], bytes | None]:
    """Return what names the arrays, and their bytes, those of large items first: so none needs to
    be copied where it arrives. ``None``: there are no bytes.

    Raises SchemaError for a dtype that cannot be sent.
    """
    ordered = dict(sorted(arrays.items(), key=lambda one: -one[1].dtype.itemsize))
    data = b"".join([_bytes(one) for one in ordered.values() if one.nbytes])
    return specs_of(ordered), data or None


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unpacked(specs: Sequence[TensorSpec], data: Any) -> dict[str, Array]:
    """Return the arrays of a block, as views. Raises Malformed."""
    found = tensors_of(specs, b"" if data is None else data)
    for array in found.values():
        with contextlib.suppress(ValueError):
            array.flags.writeable = False
    return found
