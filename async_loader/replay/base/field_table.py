"""The table of fields that kernels take: a row for each field, and the names of its columns."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids

# For writing and reading: where the field lies in the table.
ROW_ADDRESS = 0  # in row 0
ROW_STRIDE = 1  # bytes from row to row
NBYTES = 2
# And the array that is copied from (writing) or to (reading).
ARRAY_ADDRESS = 3  # of its first element
ARRAY_STRIDE = 4  # bytes from step to step
WRITING = 5
"""Columns for writing."""
# For reading only.
FRAMES = 5  # rows that the field shows
ANCHOR = 6  # the row of an item at which they end; see views.py
ZERO_PADDED = 7  # 1: frames before the episode's start are zeros; 0: its first frame
READING = 8
"""Columns for reading."""

NO_FIELDS: Ids = np.empty((0, WRITING), np.int64)


def from_step(fields: Ids, step: int) -> Ids:
    """Return the table of the same arrays from step ``step`` on."""
    if not step:
        return fields
    moved = fields.copy()
    moved[:, ARRAY_ADDRESS] += step * moved[:, ARRAY_STRIDE]
    return moved
