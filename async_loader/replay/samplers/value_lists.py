"""Rows by a whole number that each has: any row of any number that occurs, in O(1)."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.samplers.sampler import Rows

_FIRST_LISTS = 16


class ValueLists:
    """A list of rows for each value that occurs.

    The lists lie in one array, the pool. A list that is full moves to its end, with twice the room;
    when the pool is full, all lists move together, O(rows), once in a quarter as many additions.
    The list of a value that has no rows any more is given to a new one when there is no other.

    Memory: 48 bytes a row, and 40 to 200 for each value.

    Parameters
    ----------
    rows : int
        Of the table.
    """

    def __init__(self, rows: int) -> None:
        from async_loader.replay.samplers import value_list_kernels  # late: see compiled.py

        self._k = value_list_kernels
        # room for all lists as `pack` leaves them, 2.5 places a row at most, and to go on
        self._pool = np.empty(4 * rows + 64, np.int64)
        self._list_of = np.full(rows, self._k.NONE, np.int64)
        self._place = np.empty(rows, np.int64)
        self._begin()

    def _begin(self) -> None:
        self._totals = np.zeros(2, np.int64)
        self._lists = np.zeros((self._k.KNOWN, _FIRST_LISTS), np.int64)
        self._names: dict[int, int] = {}  # by value, also of some that have no rows
        self._spare = list(range(_FIRST_LISTS))

    def put(self, rows: Rows, values: Ids) -> None:
        """Note the value of each row, also of one that had another. A row may occur once."""
        into, done = self._lists_for(values), 0
        while True:
            done = self._k.put(
                self._pool, self._totals, self._lists, self._list_of, self._place, rows, into, done
            )
            if done == len(rows):
                return
            scratch = np.empty(len(self._pool), np.int64)
            self._k.pack(self._pool, scratch, self._totals, self._lists)

    def remove(self, rows: Rows) -> None:
        """Take rows out, except for unknown ones."""
        self._k.take(self._pool, self._totals, self._lists, self._list_of, self._place, rows)

    def known(self, rows: Rows) -> Rows:
        """Return those of the rows that are here."""
        here: Rows = rows[self._list_of[rows] != self._k.NONE]
        return here

    def choose(self, numbers: Floats) -> Rows:
        """Return a row for each two numbers in [0, 1): of a value by the first, by the second among
        its rows. There must be one.
        """
        rows = np.empty(len(numbers) // 2, np.int64)
        self._k.choose(numbers, self._pool, self._totals, self._lists, rows)
        return rows

    def _lists_for(self, values: Ids) -> Ids:
        found, which = np.unique(values, return_inverse=True)
        if len(self._spare) < len(found):
            self._find_spare(len(found))
        names, spare, lists = self._names, self._spare, []
        for value in found.tolist():
            mine = names.get(value)
            if mine is None:
                mine = spare.pop()
                names[value] = mine
            lists.append(mine)
        return np.array(lists, np.int64)[which]

    def _find_spare(self, least: int) -> None:
        """Find lists for new values: those without rows and, if these are few, new ones."""
        counts = self._lists[self._k.COUNT].tolist()
        names = {value: mine for value, mine in self._names.items() if counts[mine]}
        taken, there = set(names.values()), len(counts)
        spare = [mine for mine in range(there) if mine not in taken]
        if len(spare) < max(least, there // 2):
            more = max(least, there)
            added = np.zeros((self._k.KNOWN, more), np.int64)
            self._lists = np.concatenate((self._lists, added), axis=1)
            spare += range(there, there + more)
        self._names, self._spare = names, spare
