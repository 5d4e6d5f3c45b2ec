"""Insertion order of rows, as a doubly linked list in arrays.

O(1) at any place; kernels that keep the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base.compiled import kernel

END = -1
FREE = -2  # not in the list


@kernel(keeps_gil=True)
def append(before: Ids, after: Ids, ends: Ids, rows: Ids) -> None:
    """Append rows at the young end, in their order, except for known ones.

    ``ends``: the oldest and the youngest row.
    """
    for row in rows:
        if before[row] != FREE:
            continue
        before[row], after[row] = ends[1], END
        if ends[1] == END:
            ends[0] = row
        else:
            after[ends[1]] = row
        ends[1] = row


@kernel(keeps_gil=True)
def unlink(before: Ids, after: Ids, ends: Ids, rows: Ids) -> None:
    """Remove rows, wherever they are."""
    for row in rows:
        if before[row] == FREE:
            continue
        if before[row] == END:
            ends[0] = after[row]
        else:
            after[before[row]] = after[row]
        if after[row] == END:
            ends[1] = before[row]
        else:
            before[after[row]] = before[row]
        before[row] = FREE


@kernel(keeps_gil=True)
def walk(links: Ids, start: int, out: Ids) -> int:
    """Follow ``links`` from ``start`` into ``out``. Return how many rows there were."""
    row = start
    for i in range(len(out)):
        if row == END:
            return i
        out[i] = row
        row = links[row]
    return len(out)


def fresh(rows: int) -> tuple[Any, Any, Any]:
    """Return ``before``, ``after`` and ``ends`` of an empty list."""
    return np.full(rows, FREE, np.int64), np.full(rows, END, np.int64), np.full(2, END, np.int64)
