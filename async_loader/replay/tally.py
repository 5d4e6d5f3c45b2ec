"""Counts the steps of a writer that are in its table, also after Ctrl-C."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.table.table_state import TableState

_NO_IDS: Ids = np.empty(0, np.int64)


class Tally:
    """Counts the steps of one writer. One thread at a time.

    A table stores the id of a step where `begin` says, at the moment at which the step is in. So
    the ids of an interrupted call are known too. Values that belong together are assigned without a
    call between, where no signal is handled.

    Parameters
    ----------
    table_state : TableState
    """

    __slots__ = ("_before", "_ids", "_none", "_one", "_table_state", "under_way")

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self._before = 0
        self._one = np.full(1, -1, np.int64)
        self._none = self._one.copy()
        self._ids = _NO_IDS
        self.under_way = False
        """Whether a call has begun and not ended, such as one that raised."""

    def begin_one(self) -> Ids:
        """Begin a call that adds one step. Return the array for its id."""
        if self.under_way:
            self.settle()
        self._ids, self.under_way = self._one, True
        return self._one

    def begin(self, count: int) -> Ids:
        """As `begin_one`, for a call that adds ``count`` steps."""
        if self.under_way:
            self.settle()
        if len(self._none) != count:
            self._none = np.full(count, -1, np.int64)
        ids = self._none.copy()
        self._ids, self.under_way = ids, True
        return ids

    def end_one(self) -> None:
        """Count the step of a call that has returned."""
        self._before, self._one[0], self.under_way = self._before + 1, -1, False

    def end(self, count: int) -> None:
        """Count the steps of a call that has returned."""
        self._before, self._ids, self.under_way = self._before + count, _NO_IDS, False

    def settle(self) -> int:
        """Count the steps of an interrupted or refused call that are in. Return how many."""
        done = self._done()
        self._before, self._one[0], self._ids, self.under_way = (
            self._before + done,
            -1,
            _NO_IDS,
            False,
        )
        return done

    def _done(self) -> int:
        if not self.under_way:
            return 0
        table_state = self._table_state
        with table_state.lock:
            if table_state.ready and not table_state.foreign:
                table_state.table.finish()
            return int(np.count_nonzero(self._ids >= 0))

    @property
    def steps(self) -> int:
        """All steps that are in the table."""
        return self._before + self._done()
