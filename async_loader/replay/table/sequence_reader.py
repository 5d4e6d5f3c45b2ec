"""Reads sequences of steps out of a table, in any process, without a lock."""

from __future__ import annotations

import numpy as np

from async_loader.replay.array_types import Array, Ids, Weights
from async_loader.replay.base import sequence_table as q
from async_loader.replay.base.array_address import address_of
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.storage import Storage
from async_loader.shm.segment import check_fits
from async_loader.source import Window

_STEP_BYTES = 80
"""Of the scratch memory, for each step of a sequence."""
_MANY = 1 << 20
"""Steps from which on that memory is checked first."""


class SequenceReader(ReplayReader):
    """As `ReplayReader`: an item is a sequence, and its id that of its first step.

    A sequence is read again, or replaced, if one of its steps was overwritten or changed meanwhile.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
        Of a view of sequences.

    Raises
    ------
    OutOfMemory
        For sequences so long that their steps cannot be listed.
    """

    def __init__(self, storage: Storage, read_plan: ReadPlan) -> None:
        super().__init__(storage, read_plan)
        from async_loader.replay.kernels import sequences  # late: see compiled.py

        assert read_plan.sequence is not None
        view = read_plan.sequence
        self._sequences = sequences
        self._shape = np.zeros(q.READING, np.int64)
        self._shape[q.PLACES_OF_TIME], self._shape[q.LEAST] = view.steps, view.least
        self._shape[q.DILATION], self._shape[q.BEFORE] = view.dilation, read_plan.depth
        self._shape[q.FOLLOWED], self._shape[q.WHOLE] = read_plan.successor, bool(view.whole)
        self._shape[q.ACROSS] = view.crosses
        if view.span > _MANY:
            check_fits(_STEP_BYTES * view.span, f"sequences of {view.span:,} steps")
        # each step may be followed by the observation after its episode
        self._visited = np.zeros((5, read_plan.depth + 2 * view.span), np.int64)
        places = read_plan.depth - 1 + view.dilation * np.arange(view.steps)
        self._visited[4, : view.steps] = places

    def at_once(self, count: int) -> bool:
        """Return False: a sequence is read without the lock."""
        return False

    def _read(self, ids: Ids, fields: Ids, into: Window, weight: Weights | None) -> Ids:
        mask, is_first, step_index = into.fields[self._index - 3 : self._index]
        self._set(q.MASK, mask)
        self._set(q.IS_FIRST, is_first)
        self._set(q.STEP_INDEX, step_index)
        taken = np.empty(len(ids), np.int64)
        few = len(ids) <= self._short
        read = self._sequences.read_sequences if few else self._sequences.read_many_sequences
        gone = read(self._storage.geometry, ids, fields, self._shape, self._visited, taken)
        if self.read_plan.weighted:
            into.fields[self._index + 1][...] = 1.0 if weight is None else weight
        return np.flatnonzero(taken == 0) if gone else np.empty(0, np.int64)

    def _set(self, place: int, array: Array) -> None:
        self._shape[place : place + 2] = address_of(array), array.strides[0]
