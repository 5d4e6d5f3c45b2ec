"""Weights as bytes: tensors one after the other, C order, no gaps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from async_loader.errors import Malformed
from async_loader.feeder.wire import codes
from async_loader.feeder.wire.control import TensorSpec
from async_loader.feeder.wire.data import Buffer


def specs_of(
    tensors: Mapping[str, NDArray[Any]], bfloat16: Collection[str] = ()
) -> tuple[TensorSpec, ...]:
    """Return the specs in the first part of WEIGHTS or PUBLISH.

    Tensors in ``bfloat16`` are bits, as u16.

    Raises
    ------
    SchemaError
        For a dtype that cannot be sent.
    """
    return tuple(
        TensorSpec(
            name, codes.BFLOAT16 if name in bfloat16 else codes.dtype_code(value.dtype), value.shape
        )
        for name, value in tensors.items()
    )


def bytes_of(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a copy of all tensors."""
    return b"".join(value.tobytes(order="C") for value in tensors.values())


def tensors_of(specs: Iterable[TensorSpec], whole: Buffer) -> dict[str, NDArray[Any]]:
    """Return views of ``whole``, and copies of what is not aligned.

    Raises
    ------
    Malformed
        Unless the tensors fill ``whole``.
    """
    specs, view, at = tuple(specs), memoryview(whole), 0
    total = sum(spec.nbytes for spec in specs)
    if view.nbytes != total:
        raise Malformed(f"the tensors have {total} bytes, {view.nbytes} came: read on from there")
    found = {}
    for spec in specs:
        dtype = codes.TENSOR_DTYPES[spec.dtype]
        part = view[at : at + spec.nbytes]
        value = np.frombuffer(part, dtype) if spec.nbytes else np.empty(0, dtype)
        found[spec.name] = (value if value.flags.aligned else value.copy()).reshape(spec.shape)
        at += spec.nbytes
    return found
