"""Balanced: each value of a field equally often."""

from __future__ import annotations

from array import array

import numpy as np

from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Draw, Priorities, Rows
from async_loader.schema import END_FIELDS


class Balanced(Binding):
    """Every value of a field equally often, and uniformly among the items of a value.

    Each item of a batch is drawn on its own: a value out of those that some item has now, then one
    of its items, with probability 1 / (values * items of that value). Values come and go with their
    items, and with `update` of the field. Of sequences the value at the first step counts. No
    weights correct for it.

    Cost: about 50 us for 256, and O(values); less than 1 us an item for additions. Memory: 24 bytes
    a row.

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
        rows = self._items.rows
        self._value, self._place = array("q", bytes(8 * rows)), array("q", [_NONE]) * rows
        self._rows: dict[int, array[int]] = {}  # a list for each value that some row has

    def _put(self, rows: Rows) -> None:
        values = self._column(self.field)[rows].astype(np.int64)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            if self._place[row] != _NONE:
                self._take(row)
            mine = self._rows.setdefault(value, array("q"))
            self._value[row], self._place[row] = value, len(mine)
            mine.append(row)

    def _take(self, row: int) -> None:
        """Take a row out of its list; the last one there takes its place."""
        mine, place = self._rows[self._value[row]], self._place[row]
        last = mine.pop()
        if last != row:
            mine[place], self._place[last] = last, place
        self._place[row] = _NONE
        if not mine:
            del self._rows[self._value[row]]

    def insert(self, rows: Rows, priority: Priorities) -> None:
        self._put(rows)

    def remove(self, rows: Rows) -> None:
        for row in rows.tolist():
            if self._place[row] != _NONE:
                self._take(row)

    def changed(self, rows: Rows) -> None:
        """See sampler.py, NOTE [fields of steps]."""
        self._put(rows[np.asarray(self._place)[rows] != _NONE])

    def draw(self, count: int) -> Draw:
        numbers, lists = self._numbers.take(2 * count), list(self._rows.values())
        chosen = [lists[i] for i in (numbers[::2] * len(lists)).astype(np.int64).tolist()]
        places = (numbers[1::2] * list(map(len, chosen))).astype(np.int64).tolist()
        rows = [mine[place] for mine, place in zip(chosen, places, strict=True)]
        return Draw(np.array(rows, np.int64))

    def __repr__(self) -> str:
        return f"Balanced({self.field!r})"


_NONE = -1  # the place of a row that is in no list
