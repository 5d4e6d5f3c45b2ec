"""What a writer's process and the table's owner agree on by number: the words of a lane, and what
its records say.

A lane is a small block of memory that one writer and the owner share::

    words, on cache lines of their own by who stores them | records: streams | flags | priorities
"""

from __future__ import annotations

# Offsets in bytes.
PUBLISHED = 0  # records that are complete; the writer stores it last
WANTED = 64  # 1: somebody waits for rows, so ring after the next record
CLOSED = 72  # one of the states below
ADOPTED = 80  # records that the owner has taken in, whose place is free again
PERMITS = 128  # steps that may be written; taken by the writer, given and taken back by the owner
CLAIMED = 192  # the pid of the process that has opened the handle
RECORDS = 256

SIZE = 4096
"""Records; a power of two."""
NBYTES = RECORDS + 3 * 8 * SIZE

OPEN, IS_CLOSED, HAS_FAILED = 0, 1, 2

# Flags of records that are no rows, beside those of row_format.py.
ENDED = 1 << 8
"""The stream's episode ended after its last step, and nobody says what came after."""
SKIPPED = 1 << 9
"""So many rows (in place of the stream) are given back unwritten."""
NO_ROW = ENDED | SKIPPED

UNLIMITED = 1 << 62
"""InsertCredits where there is no limiter, or one that never stops inserting."""

# What `kernels.take` says in place of permits.
SHUT, STALE = -1, -2
