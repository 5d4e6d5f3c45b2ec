"""Arrays as bytes: whole, as the entries that differ from the save before, or packed."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from async_loader.errors import CorruptCheckpoint
from async_loader.replay.array_types import Array

_SMALL = 64 << 10


def encode(array: Array, before: Array | None) -> tuple[str, list[Array]]:
    """Encode an array. Return the encoding and the pieces of bytes.

    "raw": as it is. "patch": places (int64) and values of the entries that are others than
    ``before``, and those beyond its end; for trees, heaps and priorities, of which few entries
    change. "packed": first differences, zlib; for the orders of rows, which shift, and are mostly
    consecutive.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if (
        before is not None
        and before.dtype == flat.dtype
        and array.ndim == 1
        and flat.nbytes > _SMALL
    ):
        bits = flat.view(f"u{flat.itemsize}")  # NaN is NaN
        common = min(len(flat), len(before))
        places = np.flatnonzero(bits[:common] != before.view(f"u{flat.itemsize}")[:common])
        places = np.concatenate((places, np.arange(common, len(flat))))
        if len(places) * (8 + flat.itemsize) < flat.nbytes // 2:
            return "patch", [places, flat[places]]
        if flat.dtype.kind in "iu":
            packed = np.frombuffer(
                zlib.compress(np.diff(bits, prepend=bits[:1] * 0).tobytes(), 1), np.uint8
            )
            if packed.nbytes < flat.nbytes:
                return "packed", [packed]
    return "raw", [flat]


def decode(raw: memoryview, about: dict[str, Any], before: Array | None, file: object) -> Array:
    """Decode what `encode` has made.

    Raises
    ------
    CorruptCheckpoint
        If the bytes are not an array of this type and shape.
    """
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    try:
        if about["how"] == "raw":
            return np.frombuffer(raw, dtype).reshape(shape).copy()
        if about["how"] == "packed":
            nbytes = int(np.prod(shape)) * dtype.itemsize
            unpacked = zlib.decompressobj().decompress(raw, nbytes)
            steps: Array = np.frombuffer(unpacked, f"u{dtype.itemsize}")
            return np.asarray(np.cumsum(steps, dtype=steps.dtype).view(dtype).reshape(shape))
        count = len(raw) // (8 + dtype.itemsize)
        places, values = (
            np.frombuffer(raw[: 8 * count], np.int64),
            np.frombuffer(raw[8 * count :], dtype),
        )
        made = np.zeros(shape, dtype)
        if before is not None:
            common = min(len(made), len(before))
            made[:common] = before[:common]
        made[places] = values
        return made
    except (ValueError, IndexError, zlib.error) as error:
        raise CorruptCheckpoint(
            f"{file}: the array {about['name']!r} cannot be read: {error!r}"
        ) from error
