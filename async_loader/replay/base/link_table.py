"""What kernels know of items that show other rows than their own: an int64 array for each size of
batch, empty for items of one row.
"""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids

BEFORE = 0  # steps that a stack shows: the item's own and those before it
STEPS = 1  # of the return, at most
FOLLOWED = 2  # 1: the observation after the last step is shown
GAMMA = 3  # the discount of a step, a float64
DISCOUNTED = 4  # 1: the items have discounts
DISCOUNTS = 5  # address of the float32 discounts, counted from where the index begins
REWARD = 6  # the field of the reward that is summed up, -1 without one
NUMBERS = 7  # in a reward
NUMBER_BYTES = 8  # 4: float32, 8: float64
PLACES = 9

NO_LINKS: Ids = np.empty(0, np.int64)
"""Of items that are one row each."""
