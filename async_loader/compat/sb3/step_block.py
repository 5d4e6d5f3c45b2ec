"""One step of every environment, in memory that the kernels know: adding copies into it."""

from __future__ import annotations

import numpy as np

from async_loader.compat.sb3.transitions import TransitionFormat
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.buffer import parts_of
from async_loader.replay.table.records import RowSource, plain_heads
from async_loader.replay.table.table import Table as TableOfSteps


class StepBlock:
    """Writes the steps of all environments to a table, environment ``i`` to stream ``i``.

    Parameters
    ----------
    table : ReplayBuffer
    form : TransitionFormat
    linked : bool
        Whether the table links each observation to the one after it.

    Attributes
    ----------
    obs, next_obs : list of arrays [n_envs, ...]
    action, reward, terminated, truncated : arrays [n_envs, ...]
        What `write` writes.
    columns : list of arrays [n_envs, ...]
        All of them that the table has, in the order of its fields.
    """

    def __init__(self, table: Table, form: TransitionFormat, linked: bool) -> None:
        self._table, self._form, self._linked = table, form, linked
        self.obs, self.next_obs = form.empty_observations(), form.empty_observations()
        n_envs = form.n_envs
        self.action = np.zeros((n_envs, *form.action_shape), form.action_dtype)
        self.reward = np.zeros(n_envs, np.float32)
        self.terminated, self.truncated = np.zeros(n_envs, np.bool_), np.zeros(n_envs, np.bool_)
        self.columns: list[Array] = [
            *self.obs,
            *(() if linked else self.next_obs),
            self.action,
            self.reward,
            self.terminated,
            self.truncated,
        ]
        self._state = parts_of(table).state
        self._source = RowSource.of(self._state.table.fields_of(self.columns), plain_heads(n_envs))
        self._streams = list(range(n_envs))
        self._known_to: object = None
        self._numbers = np.zeros(n_envs, np.int64)

    def write(self) -> Ids:
        """Write the steps. Return their ids, which follow each other."""
        state, heads = self._state, self._source.heads
        ends = self.terminated.any() or self.truncated.any()
        if self._table.limiter is not None or (self._linked and ends):
            return self._extend()
        ids = np.empty(len(heads), np.int64)
        with state.lock:
            table = state.own()
            heads["stream"] = self.stream_numbers(table)
            heads["flags"] = state.step_packer.column_ends(self.columns) if ends else 0
            table.write(self._source, len(ids), ids)
            if state.waiters.any_waits:
                state.waiters.ring()
        return ids

    def stream_numbers(self, table: TableOfSteps) -> Ids:
        """Return the numbers of the environments' streams. Under the lock."""
        if self._known_to is not table.streams:
            self._numbers, self._known_to = table.numbers(self._streams), table.streams
        return self._numbers

    def _extend(self) -> Ids:
        nested, ends = self._form.nested, self.terminated | self.truncated
        step = {
            "obs": nested(self.obs),
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }
        if not self._linked:
            step["next_obs"] = nested(self.next_obs)
            return self._table.extend(step, stream=self._streams)
        final = nested(self.next_obs) if ends.any() else None
        return self._table.extend(step, final_obs=final, stream=self._streams)

    def goes_on(self, obs: list[Array]) -> Bools:
        """Return for each environment whether ``obs`` is the observation that was to follow.

        As it would be stored: of environments that give float64 where their space says float32, the
        one that followed has lost digits already.
        """
        same: Bools = np.ones(len(self.reward), np.bool_)
        for said, given in zip(self.next_obs, obs, strict=True):
            stored = given.astype(said.dtype, copy=False)
            if not np.array_equal(said, stored):
                equal = (said == stored) | ((said != said) & (stored != stored))  # NaN is NaN
                same &= equal.reshape(len(same), -1).all(axis=1)
        return same
