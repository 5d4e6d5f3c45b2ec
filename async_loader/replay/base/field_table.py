"""The table of fields that kernels take: a row for each field, and the names of its columns."""

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


# Of a sampler of sequences, in the order of its array.
SPAN = 0  # steps from the first to the last
SHORTEST = 1  # the same for a sequence that the end of its episode cuts short
STRIDE = 2  # steps from the beginning of one to that of the next
EPISODES = 3  # the longest episode that is a sequence; 0: sequences are parts of episodes
LEARNED_FROM = 4  # the first step to learn from, counted from the sequence's first
LEARNED = 5  # steps to learn from
APART = 6  # from one of them to the next
MOST = 7  # that one step completes
GOES_ON = 8  # 1: sequences go on into the next episode of their stream


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
