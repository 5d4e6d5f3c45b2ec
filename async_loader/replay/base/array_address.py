"""The address of an array, by the fastest way that numpy offers."""

from __future__ import annotations

import ctypes
from typing import Any

from async_loader.replay.array_types import Array

_item: Any = ctypes.c_char.from_buffer
_of = ctypes.addressof


def address_of(array: Array) -> int:
    """Return the address of the array's first byte. Keep the array alive while you use it.

    0.4 us; ``array.ctypes.data`` takes 1.5, ``array.__array_interface__`` 1.9.
    """
    try:
        return _of(_item(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, strided
        return int(array.ctypes.data)
