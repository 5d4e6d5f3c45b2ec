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
SHOWN = 6  # which row of an item they end at, or what is computed; see below
ZERO_PADDED = 7  # 1: frames before the episode's start are zeros; 0: its first frame
TIMES = 8  # places of a time axis; 0: the field has none
UNIT = 9  # bytes of a number that is summed up
READING = 10
"""Columns for reading."""

STEP, AFTER, LAST, GOAL = range(4)
"""Rows: the item's step, the one after its last step, its last step, the one of its new goal. With
a time axis the first two are those of each step.
"""
RETURN, DISCOUNT, MASK, IS_FIRST, STEP_INDEX, RELABELLED, STEPS = range(4, 11)
"""What is computed. See `ReadPlan`."""

NO_FIELDS: Ids = np.empty((0, WRITING), np.int64)


def from_step(fields: Ids, step: int) -> Ids:
    """Return the table of the same arrays from step ``step`` on."""
    if not step:
        return fields
    moved = fields.copy()
    moved[:, ARRAY_ADDRESS] += step * moved[:, ARRAY_STRIDE]
    return moved
