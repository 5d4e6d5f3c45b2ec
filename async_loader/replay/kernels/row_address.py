"""The address of a row, and whether a step is in it."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import BASE, ID, ROWS, STRIDE
from async_loader.replay.kernels.machine import load


@kernel(inline=True)
def holds(address: int, name: int) -> bool:
    return load(address + ID) == name + 1  # fresh memory is all zeros, and holds nothing


@kernel(inline=True)
def at(g: Any, name: int) -> Any:
    """Return the address of the row of an id."""
    return g[BASE] + (name % g[ROWS]) * g[STRIDE]


@kernel(inline=True)
def there(g: Any, name: int) -> bool:
    return name >= 0 and holds(at(g, name), name)
