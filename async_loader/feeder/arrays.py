"""Arrays of a call as one block of bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.feeder.wire import specs_of, tensors_of
from async_loader.feeder.wire.control import TensorSpec
from async_loader.rollouts.batches import Block, joined

Array = npt.NDArray[Any]


def packed(arrays: Mapping[str, Array]) -> tuple[tuple[TensorSpec, ...], Any]:
    """Return what names the arrays, and their bytes; ``None``: there are no bytes.

    Those of large items come first: so none needs to be copied where it arrives. Raises SchemaError
    for a dtype that cannot be sent.
    """
    if not arrays:
        return (), None
    given = {name: np.atleast_1d(one) for name, one in arrays.items()}
    block = arrays if isinstance(arrays, Block) else joined({n: [one] for n, one in given.items()})
    shaped = {name: one.reshape(arrays[name].shape) for name, one in block.items()}
    return specs_of(shaped), block.block.data if block.block.nbytes else None


def unpacked(specs: Sequence[TensorSpec], data: Any) -> dict[str, Array]:
    """Return the arrays of a block, as views. Raises Malformed."""
    return tensors_of(specs, b"" if data is None else data)
