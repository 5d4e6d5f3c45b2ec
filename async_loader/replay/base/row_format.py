"""What kernels and Python agree on by number: the words of a row's head, its flags, the places of
the geometry.

Every packed row begins with a head of four 8-byte words::

    id + 1, 0: nothing | id of the step before in its stream, -1 at its start | of the one after, -1: none yet | flags
"""

from __future__ import annotations

HEAD_BYTES = 32
ID, PREV, NEXT, FLAGS = 0, 8, 16, 24
"""Offsets of the words.

The upper half of the last is a version, odd while the row is being patched.
"""

TERMINATED = 1
"""Nothing comes after this step: its value is its reward."""
TRUNCATED = 2
"""The episode was cut off after this step; what came after is worth something."""
FINAL = 4
"""No step: the observation after the last one of an episode."""
ENDS = TERMINATED | TRUNCATED
"""Flags that end an episode."""
DELETED = 8
"""Of a row in the table: no item, and none to be."""
SHOWN = 8
"""Of a FINAL row on its way in that ends an episode: it holds the observation after the last step.
No row of a table has this flag, so that it may share its bit with DELETED."""
AWAITS = 16
"""The final observation of the episode is in the next row of the stream."""
VERSION_ONE = 1 << 32

ROW_CHANGED, STATE_CHANGED = 1, 2
"""What a checkpoint has to write again: the row, or what the table knows about it."""

# Places in the geometry, an int64 array: what a kernel has to know about a table.
BASE = 0  # address of row 0
STRIDE = 1  # bytes from row to row
ROWS = 2
CAPACITY = 3  # steps that are live at most
DEPTH = 4  # steps that an item shows: itself and those before it in its stacks
LOOKAHEAD = 5  # steps that must follow before a step is an item
ORDERED = 6  # 1: rows are overwritten in order; 0: whichever the remover chose
CURSOR = 7  # the next id in order
COUNT = 8  # items
TOP = 9  # rows that were ever used
# Addresses of arrays with one entry per row, private to the owner.
ALIVE = 10  # uint8: whether there is an item
HELD = 11  # uint8: whether another process is filling it
DIRTY = 12  # uint8: what changed since the last checkpoint
GIVEN = 13  # float64: the priority that a step came with; 0 where the table has no priorities
NAMES = 17  # int64: the id of the step, -1 where there is none; what heads say, closer together
# Other arrays of the owner.
LAST = 14  # int64 [streams]: the last step of the open episode, -1 where there is none
BORN = 15  # int64 [rows of a burst]: new items
DIED = 16  # int64: items that are no more
# The fields that say how episodes end, for what is learnt later; 0 where there is none.
TERMINATED_FIELD = 18  # address in row 0, bytes from row to row, bytes, the bytes of "yes"
TRUNCATED_FIELD = 22
FOLLOWED = 26  # 1: steps show the observation after them
GRANTED = 27  # rows that other processes hold
DONE_FIELD = 28  # as TERMINATED_FIELD
WAITING = 32  # steps that are no items yet and may become some
# the oldest id that `room` found in use: no row before it holds what is still to be drawn
TAIL = 33
PLACES = 34
