"""What the kernel that draws places knows of them: an int64 array.

A ring has ``SIZE`` positions, and a step of each of ``ENVS`` environments at each. The newest steps
may be staged, a call after the other; see staged_steps.py, NOTE [staged steps].
"""

from __future__ import annotations

SIZE = 0
ENVS = 1
NEXT = 2  # the position that is written next
NEWEST = 3  # the id of the first environment's newest step
STAGED_FROM = 4  # the id of the first step that is staged
CALL_BYTES = 5  # from staged call to staged call
MOST = 6  # positions that can be drawn
# Of the random numbers: the address of a C function that returns 32 bits, and its argument.
RANDOM, RANDOM_STATE = 7, 8
PLACES = 9
