"""The transitions of all environments in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from async_loader.compat.saved_table import SavedTable, column_of
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.errors import Broken
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base.row_format import CURSOR
from async_loader.replay.buffer import shared_table
from async_loader.replay.table.records import plain_heads
from async_loader.replay.table.table_state import TableState

Timeouts = Bools | None
"""Where the time limit of an episode ended it, for each environment; ``None``: nowhere."""


class Steps:
    """The newest ``size`` transitions of each environment; environment ``i`` is stream ``i``.

    The transition of environment ``e`` that was added ``k`` calls before the newest has the id
    ``newest - k * n_envs + e``, so a place ``[position, environment]`` is a row without a look-up.

    Parameters
    ----------
    size : int
        Transitions of each environment.
    form : TransitionFormat
    saved : SavedTable, optional
        What `saved` returned.

    Attributes
    ----------
    table : async_loader.ReplayBuffer
    next_obs : list of arrays
        What followed the newest transitions, where observations are stored once.
    """

    def __init__(self, size: int, form: TransitionFormat, saved: SavedTable | None = None) -> None:
        self._size, self._form, self._n_envs = size, form, form.n_envs
        self._newest, self.next_obs = -form.n_envs, list[Array]()
        if saved is None:
            self.table = Table(size * form.n_envs, form.schema())
        else:
            self.table, (self._newest, self.next_obs) = saved.table(), saved.extra
        self._state = shared_table(self.table)
        self._reader = self._state.reader(self._state.read_plan(None))
        self._rows = self._state.table.storage.layout.rows
        with self._state.lock:  # so that a run's first steps do not wait for it
            self._state.table.load_writing()
        self._gather = gatherer(self._state, form.n_envs)

    def add(self, values: Sequence[Any], timeouts: Timeouts) -> None:
        """Add a transition of each environment: ``obs``, ``next_obs``, ``action``, ``reward`` and
        ``done``, the first two as the arrays that an observation has.
        """
        if self._form.once:
            # as it is stored: of float64 where the space says float32, digits are lost
            following = zip(values[1:2], self._form.obs_dtypes, strict=True)
            self.next_obs = [np.array(value, dtype) for value, dtype in following]
            values = values[0], *values[2:]
        first = self._gather(values, timeouts)
        self._newest = first if first >= 0 else self._extend(values, timeouts)

    def _extend(self, values: Sequence[Any], timeouts: Timeouts) -> int:
        """Add a call that cannot be gathered. Return the id of its first step."""
        done = np.asarray(values[-1]) != 0
        truncated = np.zeros(self._n_envs, np.bool_) if timeouts is None else timeouts
        schema = self.table.schema
        assert schema is not None
        step = schema.rebuild([*values[:-1], done & ~truncated, truncated])
        return int(self.table.extend(step, stream=list(range(self._n_envs)))[0])

    def end(self) -> None:
        """End the episodes of all environments at their newest transitions."""
        for env in range(self._n_envs):
            self.table.end_episode(stream=env, terminated=True)

    def ids(self, position: Ids, env: Ids | int, next_position: int) -> Ids:
        """Return the ids of places, of which ``next_position`` is the next to be overwritten."""
        age = (next_position - 1) - position
        age %= self._size
        age *= -self._n_envs
        age += env
        age += self._newest
        return age

    def places(self, next_position: int, filled: int) -> Ids:
        """Return the ids by place, ``[size, n_envs]``; -1 where there is nothing."""
        positions = np.arange(self._size)[:, None] + np.zeros(self._n_envs, np.int64)
        ids = self.ids(positions, np.arange(self._n_envs), next_position)
        ids[filled:] = -1
        return ids

    def column(self, name: str, ids: Ids) -> Array:
        """Return a copy of one stored field of transitions, zeros where an id is not in the table;
        an array of the shape of ``ids`` and of the field.
        """
        return column_of(self.table, name, ids)

    def at(self, ids: Ids) -> Transitions:
        """Read transitions by id into new arrays."""
        state, reader = self._state, self._reader
        with state.lock:
            state.check_open()
            state.catch_up()
            read = reader.these(ids % self._rows, None) if reader.at_once(len(ids)) else None
        if read is None:
            into, gone = reader.take(ids)
            if len(gone):
                raise Broken(
                    "the table of this buffer lacks steps of add(): nothing else may write to it"
                )
            read = into.fields
        width = self._form.width
        obs = list(read[:width])
        if not self._form.once:
            return Transitions(obs, list(read[width : 2 * width]), *read[2 * width : 2 * width + 4])
        after = self.column("obs", ids + self._n_envs)
        newest = ids >= self._newest
        after[newest] = self.next_obs[0][ids[newest] - self._newest]
        return Transitions(obs, [after], *read[1:5])

    def saved(self) -> SavedTable:
        """Return everything, as an object that pickles."""
        return SavedTable.of(self.table, (self._newest, self.next_obs))


def gatherer(state: TableState, n_envs: int) -> Callable[[Sequence[Any], Timeouts], int]:
    """Return a function that puts a call of all environments among the records that the table is
    to take.

    It is given the values of the table's fields, with ``done`` for the last two, and returns the id
    of the first step; -1 for a call that has to be written by itself: of many environments, and of
    a table that is closed or of another process.
    """
    table, waiters = state.table, state.waiters
    records = table.records
    columns = records.views
    terminated, truncated = columns[-2], columns[-1]
    known_to, marked = None, False

    def gather(values: Sequence[Any], timeouts: Timeouts) -> int:
        nonlocal known_to, marked
        with state.lock:
            count = records.count
            if records.limit <= n_envs:
                return -1
            if known_to is not table.streams or not records.single:
                table.single()
                numbers = table.numbers(range(n_envs))
                records.heads[:] = plain_heads(records.capacity)
                records.heads["stream"] = np.resize(numbers, records.capacity)
                known_to, count, marked = table.streams, 0, True
            elif count + n_envs > records.limit:
                table.finish()
                count = 0
            if not count:
                records.first = int(table.g[CURSOR])
                if marked:
                    truncated[:] = marked = False
            stop = count + n_envs
            for i, value in enumerate(values):
                columns[i][count:stop] = value
            if timeouts is not None:
                marked = True
                terminated[count:stop] &= ~timeouts
                truncated[count:stop] = timeouts
            records.count = stop
            if waiters.any_waits:
                try:
                    table.finish()
                finally:
                    waiters.ring()
            return records.first + count

    return gather
