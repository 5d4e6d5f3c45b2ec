"""Draws random rows that hold an item. The kernel keeps the GIL."""

from __future__ import annotations

import numpy as np

from async_loader.errors import Broken
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.compiled import kernel
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.samplers.sampler import Items, Rows

_TRIES = 64
"""Rows that are looked at for an item, at most, where four are enough on average."""


SPARSE = 4
"""Below one item in this many rows, drawing rows and checking them takes longer than a list."""
_ALL = np.empty(0, np.int64)


def draw_any(numbers: RandomNumbers, items: Items, count: int, among: Rows | None = None) -> Rows:
    """Draw items with equal probability: from the rows ``among``, of which a quarter or more should
    hold an item, or from all; O(rows) then, if fewer than a quarter of these do.

    Raises Broken where hardly any does.
    """
    if among is None:
        sparse = items.count * SPARSE < items.top
        among = np.flatnonzero(items.alive[: items.top]) if sparse else _ALL
    rows, filled, candidates = np.empty(count, np.int64), 0, len(among) or items.top
    tries = 0
    while filled < count:
        if tries > _TRIES * (count + _TRIES):
            held = int(np.count_nonzero(items.alive))
            raise Broken(
                f"{tries:,} rows were drawn at random, and {filled} of them hold an item where "
                f"{count} are wanted: of {candidates:,} candidates, {held:,} rows hold one and "
                f"{items.count:,} are counted. The counts of this table are wrong: save it, and "
                "load it again, which counts anew"
            )
        ahead = numbers.ahead(count - filled)
        filled, used = any_items(ahead, items.alive, among, candidates, rows, filled)
        numbers.drop(used)
        tries += used
    return rows


@kernel(keeps_gil=True)
def any_items(
    numbers: Array, alive: Array, listed: Ids, candidates: int, rows: Ids, filled: int
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
