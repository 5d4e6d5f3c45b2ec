"""Transitions with both of their observations, by the places that Stable-Baselines3 gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from async_loader.compat.saved_table import SavedTable, column_of
from async_loader.compat.sb3.step_block import StepBlock
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.errors import Broken
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base.row_format import CURSOR
from async_loader.replay.buffer import parts_of
from async_loader.replay.table.records import plain_heads
from async_loader.replay.table.table_state import TableState

OTHERS = (
    "the table of this buffer has other steps than those of add(), or lacks some of them: nothing "
    "else may write to it"
)


class NewestId:
    """The id of the first environment's newest transition."""

    __slots__ = ("id",)

    def __init__(self, newest: int) -> None:
        self.id = newest


class PlacedSteps:
    """The newest ``size`` transitions of each environment.

    The transition of environment ``e`` that was added ``k`` calls before the newest has the id
    ``newest - k * n_envs + e``, so a place ``[position, environment]`` is a row without a look-up.
    Calls in which no episode ends are gathered until a draw asks for them.

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
    block : StepBlock
        What `add_block` adds.
    add : callable
        Adds a call, given its values in the order of `StepBlock.columns`, without ``truncated``.
        Returns whether it is gathered: not if an episode ends.
    """

    def __init__(self, size: int, form: TransitionFormat, saved: SavedTable | None = None) -> None:
        self._form, self._size, self._n_envs = form, size, form.n_envs
        capacity = size * form.n_envs
        self.table = Table(capacity, form.schema(False)) if saved is None else saved.table()
        self.block = StepBlock(self.table, form, linked=False)
        self._newest = NewestId(-form.n_envs if saved is None else int(saved.extra))
        parts = parts_of(self.table)
        self._state = parts.state
        self._storage = self._state.table.storage
        self._rows = self._storage.layout.rows
        self._reader = parts.table_sampler.reader(parts.table_sampler.read_plan(None))
        with self._state.lock:  # so that a run's first steps do not wait for it
            self._state.table.load_writing()
        self.add = adder(self._state, self.block, self._newest)

    def add_block(self) -> None:
        """Add what `block` holds, a transition of each environment."""
        newest = int(self.block.write()[0])
        expected = self._newest.id + self._n_envs
        self._newest.id = newest
        if newest != expected:
            raise Broken(OTHERS)

    def ids(self, position: Ids, env: Ids | int, next_position: int) -> Ids:
        """Return the ids of places, of which ``next_position`` is the next to be overwritten."""
        age = (next_position - 1) - position
        age %= self._size
        age *= -self._n_envs
        age += env
        age += self._newest.id
        return age

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
                raise Broken(OTHERS)
            read = into.fields
        width = self._form.width
        action, reward, terminated, truncated = read[2 * width : 2 * width + 4]
        return Transitions(
            list(read[:width]), list(read[width : 2 * width]), action, reward, terminated, truncated
        )

    def column(self, name: str, ids: Ids) -> Array:
        """Return a copy of one stored field of transitions, zeros where an id is not in the table;
        an array of the shape of ``ids`` and of the field.
        """
        return column_of(self.table, name, ids)

    def clear(self) -> None:
        """Remove all transitions."""
        self.table.clear()

    def saved(self) -> SavedTable:
        """Return everything, as an object that pickles."""
        return SavedTable.of(self.table, self._newest.id)


def adder(state: TableState, block: StepBlock, newest: NewestId) -> Callable[[Sequence[Any]], bool]:
    """Return a function that gathers a call; see `PlacedSteps.add`."""
    table, waiters, rows = state.table, state.waiters, len(block.reward)
    records = table.records
    columns, ends, no_ends = records.views[:-1], records.views[-2], bytes(rows)
    fields, known_to = range(len(columns)), None

    def add(values: Sequence[Any]) -> bool:
        nonlocal known_to
        with state.lock:
            count = records.count
            if records.limit <= rows:
                return False
            if known_to is not table.streams or not records.single:
                table.single()
                records.heads[:] = plain_heads(records.capacity)
                records.heads["stream"] = np.resize(block.stream_numbers(table), records.capacity)
                known_to, count = table.streams, 0
            elif count + rows > records.limit:
                table.finish()
                count = 0
            if not count:
                records.first = int(table.g[CURSOR])
            if records.first + count != newest.id + rows:
                return False
            stop = count + rows
            for i in fields:
                columns[i][count:stop] = values[i]
            if ends[count] if rows == 1 else ends[count:stop].tobytes() != no_ends:
                return False
            records.count = stop
            newest.id += rows
            if waiters.any_waits:
                try:
                    table.finish()
                finally:
                    waiters.ring()
        return True

    return add
