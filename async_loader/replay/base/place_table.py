"""What the kernel that draws places knows of them: an int64 array, which ends with the addresses of
the arrays that it fills, one for each field.

A ring has ``SIZE`` positions, and a step of each of ``ENVS`` environments at each. The newest steps
may be gathered only, one after the other; see table/records.py, NOTE [records].
"""

from __future__ import annotations

SIZE = 0
ENVS = 1
# Of the random numbers: the address of a C function that returns 32 bits, and its argument.
RANDOM, RANDOM_STATE = 2, 3
# From here on it changes with each draw.
NEXT = 4  # the position that is written next
NEWEST = 5  # the id of the first environment's newest step
GATHERED_FROM = 6  # the id of the first step that is only gathered
MOST = 7  # positions that can be drawn
TARGETS = 8
