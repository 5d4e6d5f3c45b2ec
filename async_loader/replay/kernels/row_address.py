"""The address of a row, whether a step is in it, and its fields."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.row_format import BASE, ID, ROWS, STRIDE
from async_loader.replay.kernels.machine import copy, load, prefetch

AHEAD = 12
"""Items, from the request of a row to its first use."""
_LINE = 64  # bytes


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


# A kernel that stores cannot know that ``g[ROWS]`` stays as it is, and so divides by it again for
# each use of a row; 19 divisions are three quarters of writing a small row. It divides once and
# passes the row on.


@kernel(inline=True)
def at_row(g: Any, row: int) -> Any:
    """Return the address of a row."""
    return g[BASE] + row * g[STRIDE]


@kernel(inline=True)
def there_at(g: Any, name: int, row: int) -> bool:
    """As `there`, where the row of the id is known."""
    return name >= 0 and holds(at_row(g, row), name)


@kernel(inline=True)
def neighbour(row: int, name: int, other: int, rows: int) -> int:
    """Return the row of the id ``other``, from the row of the id ``name``: a division takes longer
    than to read a small row.
    """
    found = row + (other - name)
    if found >= rows:
        found -= rows
    elif found < 0:
        found += rows
    return found if 0 <= found < rows else other % rows


@kernel(inline=True)
def fetch(address: int, stride: int) -> None:
    """Begin to load a packed row.

    With 12 of them under way all the time 256 random rows of 200 MB take 11 us, and 4096 take 150;
    with all of a block of 64 requested at once 20 and 310.
    """
    for line in range(0, stride, _LINE):
        prefetch(address + line)


@kernel(inline=True)
def fetch_run(g: Any, row: int, step: int, first: int, last: int, nbytes: int) -> None:
    """Begin to load rows of a stream, from the ``first`` to the ``last`` after ``row``: they mostly
    lie ``step`` rows from each other.
    """
    for ahead in range(first, last + 1):
        place = row + ahead * step
        if 0 <= place < g[ROWS]:
            fetch(g[BASE] + place * g[STRIDE], nbytes)


@kernel(inline=True)
def put_row(fields: Any, block: int, i: int, row: int) -> None:
    """Copy step ``i`` of the arrays of ``fields``, ``block`` bytes after their addresses, into a
    row.
    """
    for f in range(len(fields)):
        copy(
            fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE],
            fields[f, ARRAY_ADDRESS] + block + i * fields[f, ARRAY_STRIDE],
            fields[f, NBYTES],
        )


@kernel(inline=True)
def get_row(fields: Any, i: int, row: int, block: int) -> None:
    """Copy a row into place ``i`` of the arrays of ``fields``, whose addresses count from
    ``block``.
    """
    for f in range(len(fields)):
        copy(
            block + fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE],
            fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE],
            fields[f, NBYTES],
        )
