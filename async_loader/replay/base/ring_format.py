"""Layout of the memory that a writer's process and the table's process share, and of its records.

The publish ring is a small block of memory that both share::

    words, on cache lines of their own by who stores them | records: streams | flags | priorities
"""

from __future__ import annotations

# Offsets in bytes.
PUBLISHED = 0  # records that are complete; the writer stores it last
WANTED = 64  # 1: a call waits for rows, so ring after the next record
CLOSED = 72  # one of the states below
COMMITTED = 80  # committed records, whose places are free again
CREDITS = 128  # steps that may be written; only the table's process gives them
CLAIMED = 192  # the pid of the process that has opened the handle
RECORDS = 256

SIZE = 4096
"""Records; a power of two."""
NBYTES = RECORDS + 3 * 8 * SIZE

OPEN, IS_CLOSED, HAS_FAILED = 0, 1, 2

# Flags of records without a row, beside those of row_format.py.
ENDED = 1 << 8
"""The stream's episode ended after its last step, and the observation after it is unknown."""
SKIPPED = 1 << 9
"""Rows (their number is in place of the stream) are given back unwritten."""

UNLIMITED = 1 << 62
"""Credits of a writer if no limiter stops inserting."""

# Answers of `kernels.take` in place of credits.
SHUT, STALE = -1, -2
