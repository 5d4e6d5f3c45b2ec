"""What kernels know of items that show more than their own row: an int64 array for each reader,
empty for items of one row. Numbers, then the discounts of returns, then scratch.

The rows that an item shows have places: first those that only its stacks show, then its steps, each
with the observation after its episode where there is one, then the row of a goal. The scratch has
``PLACES`` words for each of: the ids, rows and versions of these rows, the place at which the
episode of each begins, and the place of each step on the time axis.
"""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids

BEFORE = 0  # steps that a stack shows: the item's own and those before it
SPAN = 1  # steps from the first to the last, at most
DILATION = 2  # steps from place to place of the time axis
LEAST = 3  # places of the time axis that hold a step in every item
FOLLOWED = 4  # 1: the observation after each step is shown
WHOLE = 5  # 1: the item is an episode, and ends with it
ACROSS = 6  # 1: it goes on into the next episode of its stream
FOLLOWING = 7  # 1: what a step has achieved is in the row after it
PLACES = 8
NUMBERS = 9

NO_PLAN: Ids = np.empty(0, np.int64)
"""Of items that are one row each."""
NO_GOALS: Ids = np.empty(0, np.int64)


def read_table(
    *,
    before: int,
    span: int,
    dilation: int,
    least: int,
    followed: bool,
    whole: bool,
    across: bool,
    following: bool,
    gamma: float | None,
) -> Ids:
    """Return the array. ``gamma``: of items with discounts."""
    places, numbers = before + 2 * span + 1, span + 1
    made = np.zeros(NUMBERS + numbers + 5 * places, np.int64)
    made[:NUMBERS] = before, span, dilation, least, followed, whole, across, following, places
    if gamma is not None:
        made[NUMBERS : NUMBERS + numbers].view(np.float64)[:] = gamma ** np.arange(numbers)
    steps = (span - 1) // dilation + 1
    axis = len(made) - places
    made[axis : axis + steps] = before - 1 + dilation * np.arange(steps)
    return made
