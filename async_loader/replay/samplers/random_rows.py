"""Draws random rows that hold an item. Kernels that keep the GIL."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel


@kernel(keeps_gil=True)
def any_items(
    numbers: Any, alive: Any, listed: Any, candidates: int, rows: Any, filled: int
) -> tuple[int, int]:
    """Fill ``rows`` from ``filled`` on with rows that hold an item, each with equal probability.

    Candidates are the rows below ``candidates``, or that many listed rows. Scaling 53 random bits
    is off uniform by less than candidates / 2**53, and the largest number below 1 rounds to below
    ``candidates``.

    Returns
    -------
    int, int
        Rows that are filled; numbers that were used.
    """
    used = 0
    while filled < len(rows) and used < len(numbers):
        row = int(numbers[used] * candidates)
        if len(listed):
            row = listed[row]
        used += 1
        if alive[row]:
            rows[filled] = row
            filled += 1
    return filled, used
