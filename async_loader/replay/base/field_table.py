"""What kernels take beside a table: a row for each field, and the names of its columns.

# NOTE [read plans]
What kernels know of items that show more than their own row: an int64 array for each reader,
empty for items of one row. Numbers, then the discounts of returns, then scratch.

The rows that an item shows have places: first those that only its stacks show, then its steps, each
with the observation after its episode where there is one, then the row of a goal. The scratch has
``PLACES`` words for each of: the ids, rows and versions of these rows, the place at which the
episode of each begins, and the place of each step on the time axis.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Ids

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


BEFORE = 0  # steps that a stack shows: the item's own and those before it
SPAN = 1  # steps from the first to the last, at most
DILATION = 2  # steps from place to place of the time axis
LEAST = 3  # places of the time axis that hold a step in every item
FOLLOWED = 4  # 1: the observation after each step is shown
WHOLE = 5  # 1: the item is an episode, and ends with it
ACROSS = 6  # 1: it goes on into the next episode of its stream
FOLLOWING = 7  # 1: what a step has achieved is in the row after it
PLACES = 8
PAIR = 9  # 1: items are a step and the row after it, as it is
NUMBERS = 10

NO_PLAN: Ids = np.empty(0, np.int64)
"""Of items that are one row each."""
NO_GOALS: Ids = np.empty(0, np.int64)


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
