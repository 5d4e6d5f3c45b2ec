"""Arrays of a call as one block of bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.wire import specs_of, tensors_of
from async_loader.feeder.wire.control import TensorSpec
from async_loader.rollouts.batches import Pieces, joined

Array = npt.NDArray[Any]


def packed(
    arrays: Mapping[str, Any], into: Array | None = None
) -> tuple[tuple[TensorSpec, ...], Any]:
    """Return what names the arrays, and their bytes; ``None``: there are no bytes.

    Those of large items come first: so none needs to be copied where it arrives. Raises SchemaError
    for a dtype that cannot be sent.
    """
    if not arrays:
        return (), None
    found, block = joined(pieces_of(arrays), into)
    if not isinstance(arrays, Pieces):
        found = {name: one.reshape(arrays[name].shape) for name, one in found.items()}
    return specs_of(found), block.data if block.nbytes else None


def pieces_of(arrays: Mapping[str, Any]) -> Pieces:
    """Return arrays, or what they are to be joined of, as pieces."""
    if isinstance(arrays, Pieces):
        return arrays
    return Pieces({name: [np.atleast_1d(one)] for name, one in arrays.items()})


def unpacked(specs: Sequence[TensorSpec], data: Any) -> dict[str, Array]:
    """Return the arrays of a block, as views. Raises Malformed."""
    return tensors_of(specs, b"" if data is None else data)
