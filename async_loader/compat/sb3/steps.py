"""The transitions of all environments in a table: with both of their observations, or linked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from async_loader.compat.saved_table import SavedTable, column_of
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.errors import Broken, NotEnoughData
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base.row_format import CURSOR, TERMINATED, TRUNCATED
from async_loader.replay.buffer import shared_table
from async_loader.replay.table.records import plain_heads
from async_loader.replay.table.table_state import TableState

OTHERS = (
    "the table of this buffer has other steps than those of add(), or lacks some of them: nothing "
    "else may write to it"
)
Timeouts = Bools | None
"""Where the time limit of an episode ended it, for each environment; ``None``: nowhere."""


class _Steps:
    """The table of the newest transitions; environment ``i`` is stream ``i``.

    Attributes
    ----------
    table : async_loader.ReplayBuffer
    gather : callable
        See `gatherer`.
    """

    def __init__(self, table: Table, form: TransitionFormat, linked: bool) -> None:
        self.table, self._form, self._linked = table, form, linked
        self._n_envs, self._state = form.n_envs, shared_table(table)
        self.gather = gatherer(self._state, form.n_envs, linked)

    def _extend(self, values: Sequence[Any], timeouts: Timeouts) -> Ids:
        """Add a call that cannot be gathered. Return the ids of its steps."""
        width, nested = self._form.width, self._form.nested
        obs, next_obs = nested(values[:width]), nested(values[width : 2 * width])
        action, reward, done = values[2 * width :]
        done, truncated = np.asarray(done) != 0, np.zeros(self._n_envs, np.bool_)
        if timeouts is not None:
            done, truncated = done & ~timeouts, timeouts
        step = {"obs": obs, "action": action, "reward": reward}
        step |= {"terminated": done, "truncated": truncated}
        streams, final = list(range(self._n_envs)), None
        if not self._linked:
            step["next_obs"] = next_obs
        elif done.any() or truncated.any():
            final = next_obs
        return self.table.extend(step, final_obs=final, stream=streams)

    def column(self, name: str, ids: Ids) -> Array:
        """Return a copy of one stored field of transitions, zeros where an id is not in the table;
        an array of the shape of ``ids`` and of the field.
        """
        return column_of(self.table, name, ids)


class PlacedSteps(_Steps):
    """The newest ``size`` transitions of each environment, with both of their observations.

    The transition of environment ``e`` that was added ``k`` calls before the newest has the id
    ``newest - k * n_envs + e``, so a place ``[position, environment]`` is a row without a look-up.

    Parameters
    ----------
    size : int
        Transitions of each environment.
    form : TransitionFormat
    saved : SavedTable, optional
        What `saved` returned.
    """

    def __init__(self, size: int, form: TransitionFormat, saved: SavedTable | None = None) -> None:
        n_envs = form.n_envs
        table = Table(size * n_envs, form.schema(False)) if saved is None else saved.table()
        super().__init__(table, form, False)
        self._size = size
        self._newest = -n_envs if saved is None else int(saved.extra)
        drawing = shared_table(table)
        self._reader = drawing.reader(drawing.read_plan(None))
        self._rows = self._state.table.storage.layout.rows
        with self._state.lock:  # so that a run's first steps do not wait for it
            self._state.table.load_writing()

    def add(self, values: Sequence[Any], timeouts: Timeouts, position: int) -> None:
        """Add a transition of each environment: ``obs``, ``next_obs``, ``action``, ``reward`` and
        ``done``, the first two as the arrays that an observation has.
        """
        first = self.gather(values, timeouts)
        if first < 0:
            first = int(self._extend(values, timeouts)[0])
        expected, self._newest = self._newest + self._n_envs, first
        if first != expected:
            raise Broken(OTHERS)

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
        return Transitions(
            list(read[:width]), list(read[width : 2 * width]), *read[2 * width : 2 * width + 4]
        )

    def clear(self) -> None:
        """Remove all transitions."""
        self.table.clear()

    def saved(self) -> SavedTable:
        """Return everything, as an object that pickles."""
        return SavedTable.of(self.table, self._newest)


class LinkedSteps(_Steps):
    """About the newest ``size`` transitions of each environment, whose next observation is that of
    the step after them: the one after an episode's last step takes the room of a transition.

    A transition can be drawn when the one after it is there, or its episode has ended. Where an
    observation is not the one that the call before said would follow, as after a reset, the one
    that was said is stored too.

    Parameters
    ----------
    size, form, saved
        As of `PlacedSteps`.
    seed : int, optional
        Of the draws.
    """

    def __init__(
        self,
        size: int,
        form: TransitionFormat,
        seed: int | None = None,
        saved: SavedTable | None = None,
    ) -> None:
        # a step can be drawn when the one after it is there
        capacity = max(2, size) * form.n_envs
        table = Table(capacity, form.schema(True), seed=seed) if saved is None else saved.table()
        super().__init__(table, form, True)
        self._open = np.zeros(form.n_envs, np.bool_)
        self._places = np.full((size, form.n_envs), -1, np.int64)
        self._next_obs: list[Array] = []
        if saved is not None:
            self._next_obs, self._open, self._places = saved.extra
            self.end(self._open)

    def add(self, values: Sequence[Any], timeouts: Timeouts, position: int) -> None:
        """As `PlacedSteps.add`, at a position."""
        width = self._form.width
        obs, following = values[:width], values[width : 2 * width]
        if self._open.any():
            self.end(~self._goes_on(obs))
        first = self.gather((*obs, *values[2 * width :]), timeouts)
        ids = self._extend(values, timeouts) if first < 0 else first + np.arange(self._n_envs)
        self._places[position] = ids
        # as it is stored: of float64 where the space says float32, digits are lost
        kinds = self._form.obs_dtypes
        self._next_obs = [np.array(v, d) for v, d in zip(following, kinds, strict=True)]
        self._open = np.asarray(values[-1]) == 0
        if timeouts is not None:
            self._open &= ~timeouts

    def _goes_on(self, obs: Sequence[Array]) -> Bools:
        """Return for each environment whether ``obs`` is the observation that was to follow."""
        same: Bools = np.ones(self._n_envs, np.bool_)
        for said, given in zip(self._next_obs, obs, strict=True):
            stored = given.astype(said.dtype, copy=False)
            if not np.array_equal(said, stored):
                equal = (said == stored) | ((said != said) & (stored != stored))  # NaN is NaN
                same &= equal.reshape(len(same), -1).all(axis=1)
        return same

    def end(self, which: Bools) -> None:
        """End the episodes of these environments that go on still, as truncated."""
        for env in np.flatnonzero(self._open & which).tolist():
            final: Any = self._form.nested([array[env] for array in self._next_obs])
            self.table.end_episode(stream=env, final_obs=final, truncated=True)
        self._open = self._open & ~which

    def draw(self, batch_size: int) -> Transitions:
        """Draw transitions uniformly, with replacement, into new arrays."""
        try:
            batch = self.table.sample(batch_size)
        except NotEnoughData:
            # all that there is waits for its next observation
            self.end(self._open)
            batch = self.table.sample(batch_size)
        keys = self._form.keys
        obs, next_obs = (
            [one] if keys is None else [one[key] for key in keys]
            for one in (batch["obs"], batch["next_obs"])
        )
        rest = [batch[name] for name in ("action", "reward", "terminated", "truncated")]
        return Transitions(obs, next_obs, *rest)

    def places(self, next_position: int, filled: int) -> Ids:
        """As `PlacedSteps.places`."""
        return self._places

    def clear(self) -> None:
        """Remove all transitions."""
        self.table.clear()
        self._open[:] = False
        self._places[:] = -1

    def saved(self) -> SavedTable:
        """Return everything, as an object that pickles."""
        return SavedTable.of(self.table, (self._next_obs, self._open, self._places))


def gatherer(
    state: TableState, n_envs: int, linked: bool
) -> Callable[[Sequence[Any], Timeouts], int]:
    """Return a function that puts a call of all environments among the records that the table is
    to take.

    It is given the values of the table's fields, with ``done`` for the last two, and returns the id
    of the first step; -1 for a call that has to be written by itself: of many environments, of a
    table that is closed or of another process, and where an episode ends of linked steps.
    """
    table, waiters = state.table, state.waiters
    records = table.records
    columns, no_ends = records.views, bytes(n_envs)
    terminated, truncated = columns[-2], columns[-1]
    flags, known_to, marked = records.heads["flags"], None, False

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
                    flags[:] = truncated[:] = marked = False
            stop = count + n_envs
            for i, value in enumerate(values):
                columns[i][count:stop] = value
            if timeouts is not None or (
                terminated[count] if n_envs == 1 else terminated[count:stop].tobytes() != no_ends
            ):
                if linked:
                    return -1
                ended, marked = terminated[count:stop], True
                if timeouts is not None:
                    ended &= ~timeouts
                    truncated[count:stop] = timeouts
                flags[count:stop] = ended * TERMINATED | truncated[count:stop] * TRUNCATED
            records.count = stop
            if waiters.any_waits:
                try:
                    table.finish()
                finally:
                    waiters.ring()
            return records.first + count

    return gather
