"""Transitions with both of their observations, by the places that Stable-Baselines3 gives them."""

from __future__ import annotations

import weakref

from async_loader.compat.saved_table import SavedTable, column_of
from async_loader.compat.sb3.cold_calls import OTHERS, NewestId, adder, drawer
from async_loader.compat.sb3.placed_draws import PlacedDraws
from async_loader.compat.sb3.staged_calls import StagedCalls
from async_loader.compat.sb3.step_block import StepBlock
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.errors import Broken
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.buffer import parts_of
from async_loader.replay.table.readers import reader_of


class PlacedSteps:
    """The newest ``size`` transitions of each environment.

    The transition of environment ``e`` that was added ``k`` calls before the newest has the id
    ``newest - k * n_envs + e``, so a place ``[position, environment]`` is a row without a look-up.
    Calls in which no episode ends are staged, and drawn from where they are staged: an algorithm
    that draws after each step would have the table written for every step.

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
        Returns whether it is staged: not if an episode ends.
    draw : callable
        As `PlacedDraws.draw`, without the id; ``None`` if there are more than one call of the
        kernel reads.
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
        self._reader = reader_of(self._state, parts.table_sampler.read_plan(None))
        columns = self.block.columns
        self._staged = None
        if StagedCalls.suits(columns):
            self._staged = StagedCalls(self._state.step_packer, columns)
        self._drawing = PlacedDraws(self._storage, form, size, self._staged)
        with self._state.lock:  # so that a run's first steps do not wait for it
            self._state.table.load_writing()
        self.add = adder(
            self._state, self._staged, self._newest, weakref.WeakMethod(self.begin_staging)
        )
        self.draw = drawer(self._state, self._drawing, self._newest)
        self.draw(0, 1, 0)  # loads the kernel

    def begin_staging(self) -> bool:
        """Let the table take staged calls; return whether it does. Under the lock."""
        state, staged = self._state, self._staged
        if staged is None:
            return False
        if state.foreign or state.closed:
            return False
        table = state.own()
        staged.count = 0
        staged.streams[:] = self.block.stream_numbers(table)
        return state.stage_in(staged)

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
