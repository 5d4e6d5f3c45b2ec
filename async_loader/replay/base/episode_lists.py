"""The ids of episodes, which a reader remembers: int64 arrays of its own, and how they are divided.

A list is a head and the ids of one episode, oldest first, with room for more. ``lists`` begins with
an empty one, whose first word says where the next list begins. Where no room is left, all lists are
forgotten. ``places [rows]`` says for each row where its id is in the lists, and is believed only if
that id is there.
"""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids

END = 0  # where the next list begins

SIZE = 0  # words of the list with its head
COUNT = 1  # ids; 0: the list has moved
FIRST = 2  # the place of the oldest id that may still be in the table
CLOSED = 3  # 1: no id will follow
HEAD = 4
"""Words of a head."""

PLACE_BITS = 31
"""A place is the word of the head, shifted, and the position of the id in the list."""

SPARE = 32
"""Words for further ids in a new list: an episode of fewer steps is not moved."""


def new_lists(rows: int) -> tuple[Ids, Ids]:
    """Return ``places [rows]`` and ``lists``. Their pages are provided as they are written.

    ``lists``: every row is in one list; half of a list that grows is room; and a list that grows is
    copied.
    """
    lists = np.zeros(HEAD + 2 * rows + 2 * (HEAD + SPARE), np.int64)
    lists[END] = HEAD
    return np.zeros(rows, np.int64), lists
