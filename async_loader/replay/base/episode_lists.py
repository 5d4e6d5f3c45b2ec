"""The ids of episodes, which a reader remembers: int64 arrays of its own, and how they are divided.

``lists`` holds, one after another, a head and the ids of one episode, oldest first, with room for
more. New lists are put where the oldest ones are: nothing is freed. ``places [rows]`` says for each
row where its id is in the lists, and is believed only if that id is there.
"""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids

SIZE = 0  # words of the list with its head, negative: as no id is, which marks a head
COUNT = 1  # ids; 0: the list has moved, or its rows are gone
FIRST = 2  # the place of the oldest id that may still be in the table
CLOSED = 3  # 1: no id will follow
HEAD = 4
"""Words of a head."""

END = 0  # where the next list begins
OLD = 1  # the first head at or after END, of an earlier round
ROUND = 2  # where the lists of the earlier round end
EMPTIED = 3  # how often the table had been emptied when the lists were begun
MARKS = 4
"""Numbers of all lists."""

PLACE_BITS = 31
"""A place is the word of the head, shifted, and the position of the id in the list."""

SPARE = 32
"""Words for further ids in a new list: an episode of fewer steps is not moved."""


def new_lists(rows: int) -> tuple[Ids, Ids, Ids]:
    """Return ``places [rows]``, ``lists`` and marks. Their pages are provided as they are written.

    ``lists``: every row is in one list; half of a list that grows is room; and a list that grows is
    copied.
    """
    words = 2 * rows + 2 * (HEAD + SPARE)
    return np.zeros(rows, np.int64), np.zeros(words, np.int64), np.zeros(MARKS, np.int64)
