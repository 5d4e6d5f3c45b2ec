"""Balanced: every value of a field equally often."""

from __future__ import annotations

import numpy as np

from async_loader.errors import ConfigError
from async_loader.names import explain_wrong_names
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows
from async_loader.schema import END_FIELDS


class Balanced(Binding):
    """Every value of a field equally often, and uniformly among the items of a value.

    Each item of a batch is drawn on its own: a value out of those that some item has now, then one
    of its items, with probability 1 / (values * items of that value). Values come and go with their
    items, and with `update` of the field. Of sequences the value at the first step counts. No
    weights correct for it.

    Cost: 3 to 6 us for 256, up to 25 with as many values as items; some 30 us a call for
    additions, and 0.1 us for each value in it. Memory: 48 bytes a row.

    Parameters
    ----------
    field : str
        A field of whole numbers or bools, one for each step: a task, whether an episode succeeded.
        A nested one by its dotted name, as "info.task".

    Raises
    ------
    ConfigError
        For a value that is no name, and for ``terminated``, ``truncated`` and ``done``, which may
        change when an episode ends. When the table gets its schema: for a field that is not there,
        of floats, or of several numbers for a step.
    """

    prioritized = False
    weighted = False
    repeats = True

    @explain_wrong_names
    def __init__(self, field: str) -> None:
        super().__init__()
        if not isinstance(field, str) or not field:
            raise ConfigError(
                f"field={field!r}: give the name of a field of the steps, as in Balanced('task')"
            )
        if field in END_FIELDS:
            raise ConfigError(
                f"Balanced({field!r}): this field may change after its step was added, when the "
                "episode ends; store what you want to balance in a field of another name"
            )
        self.field = field

    def _bound(self) -> None:
        items = self._items
        if items.column is None:
            raise ConfigError(
                f"{self!r} reads a field of steps, and these items have none: make Items with "
                "column="
            )
        column = items.column(self.field)
        if column.ndim != 1:
            raise ConfigError(
                f"{self!r} needs one number for each step, and field {self.field!r} has "
                f"{list(column.shape[1:])}: store the one to balance by in a field of its own"
            )
        if column.dtype.kind not in "iub":
            raise ConfigError(
                f"{self!r} needs a field of whole numbers or bools, and {self.field!r} is "
                f"{column.dtype}: store which class a step is of as an integer, as np.digitize "
                "makes it of a float"
            )
        self._column = items.column

    def reset(self) -> None:
        self._lists = ValueLists(self._items.rows)

    def _values(self, rows: Rows) -> Ids:
        values: Ids = self._column(self.field)[rows].astype(np.int64)
        return values

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._lists.put(rows, self._values(rows))

    def remove(self, rows: Rows) -> None:
        self._lists.remove(rows)

    def changed(self, rows: Rows) -> None:
        """See sampler.py, NOTE [fields of steps]."""
        rows = self._lists.known(rows)
        self._lists.put(rows, self._values(rows))

    def draw(self, count: int) -> Draw:
        return Draw(self._lists.choose(self._numbers.take(2 * count)))

    def __repr__(self) -> str:
        return f"Balanced({self.field!r})"


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
