"""Transitions whose next observation is that of the step after them: each is stored once."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.compat.saved_table import SavedTable, column_of
from async_loader.compat.sb3.step_block import StepBlock
from async_loader.compat.sb3.transitions import TransitionFormat, Transitions
from async_loader.errors import NotEnoughData
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Bools, Ids


class LinkedSteps:
    """About the newest ``size`` transitions of each environment: the observation after an
    episode's last step takes the room of a transition.

    A transition can be drawn when the one after it is there, or its episode has ended. Where an
    observation is not the one that the call before said would follow, as after a reset, the one
    that was said is stored too.

    Parameters
    ----------
    size : int
        Transitions of each environment.
    form : TransitionFormat
    seed : int, optional
        Of the draws.
    saved : SavedTable, optional
        What `saved` returned.

    Attributes
    ----------
    table : async_loader.ReplayBuffer
    block : StepBlock
        What `add` adds.
    places : int64 array [size, n_envs]
        Ids by Stable-Baselines3's places; -1 where nothing was added.
    """

    def __init__(
        self,
        size: int,
        form: TransitionFormat,
        seed: int | None = None,
        saved: SavedTable | None = None,
    ) -> None:
        self._form = form
        self._open = np.zeros(form.n_envs, np.bool_)
        self.places = np.full((size, form.n_envs), -1, np.int64)
        if saved is None:
            # a step can be drawn when the one after it is there
            capacity = max(2, size) * form.n_envs
            self.table = Table(capacity, form.schema(True), seed=seed)
        else:
            self.table = saved.table()
        self.block = StepBlock(self.table, form, linked=True)
        if saved is not None:
            self.block.next_obs, self._open, self.places = saved.extra
            self._end_where(self._open)
            self.block = StepBlock(self.table, form, linked=True)

    def add(self, position: int) -> None:
        """Add what `block` holds to a place, a transition of each environment."""
        block = self.block
        self.places[position] = block.write()
        self._open = ~(block.terminated | block.truncated)

    def follow(self, obs: list[Array]) -> None:
        """End the episodes in which ``obs`` is not what was to follow, before `block` is filled."""
        if self._open.any():
            self._end_where(self._open & ~self.block.goes_on(obs))

    def end(self, which: Bools) -> None:
        """End the episodes of these environments that go on still, as truncated."""
        self._end_where(self._open & which)

    def draw(self, batch_size: int) -> Transitions:
        """Draw transitions uniformly, with replacement, into new arrays."""
        try:
            batch = self.table.sample(batch_size)
        except NotEnoughData:
            # all that there is waits for its next observation
            self._end_where(self._open)
            batch = self.table.sample(batch_size)
        return Transitions(
            self._leaves(batch["obs"]),
            self._leaves(batch["next_obs"]),
            batch["action"],
            batch["reward"],
            batch["terminated"],
            batch["truncated"],
        )

    def column(self, name: str, ids: Ids) -> Array:
        """As `PlacedSteps.column`."""
        return column_of(self.table, name, ids)

    def clear(self) -> None:
        """Remove all transitions."""
        self.table.clear()
        self._open[:] = False
        self.places[:] = -1

    def saved(self) -> SavedTable:
        """Return everything, as an object that pickles."""
        return SavedTable.of(self.table, (self.block.next_obs, self._open, self.places))

    def _end_where(self, which: Bools) -> None:
        for env in np.flatnonzero(which).tolist():
            final: Any = self._form.nested([array[env] for array in self.block.next_obs])
            self.table.end_episode(stream=env, final_obs=final, truncated=True)
        self._open = self._open & ~which

    def _leaves(self, obs: Any) -> list[Array]:
        keys = self._form.keys
        return [obs] if keys is None else [obs[key] for key in keys]
