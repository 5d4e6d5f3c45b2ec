"""Hindsight goals of items that a reader reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.hindsight_view import GOAL, HindsightParts, Strategy, replace_returns
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.binding import RandomNumbers
from async_loader.replay.table.storage import Storage


class GoalReader:
    """Chooses new goals, and computes the returns that they change.

    Walks an episode from link to link once, and keeps the ids of its steps: 8 to 32 bytes for each
    row of the table, in each reader. Cost of the walk: 6 ns a step, where rows lie in order; of a
    draw then: independent of the episode's length.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
        Of a view of hindsight goals.
    numbers : RandomNumbers, optional
        What chooses goals; without it none is replaced, as in a copy that is being prepared.

    Attributes
    ----------
    chances : float64 array
        In [0, 1): what chooses the goals of the next items, in place of ``numbers``.
    """

    def __init__(
        self, storage: Storage, read_plan: ReadPlan, numbers: RandomNumbers | None
    ) -> None:
        from async_loader.replay.kernels import goals  # late: see compiled.py

        of = read_plan.goals
        assert of is not None
        self._k = goals
        self._goals, self._storage = of, storage
        self.numbers, self.chances = numbers, np.empty(0)
        self._places = {one.name: i for i, one in enumerate(read_plan.outputs)}
        self._relabelled = self._places["relabelled"]
        self._parts = [one.name for one in read_plan.hidden]
        self._in_parts = isinstance(of.view, HindsightParts)
        self._stacked = {i: read_plan.outputs[i].frames > 1 for i in of.goals}
        self._goal = self._places.get(GOAL, 0)
        self._forget_episodes()

    def choose(self, ids: Ids) -> Ids:
        """Return the id of the row with the new goal of each item; negative: see kernels/goals.py.

        Whether it is there is seen when it is read.
        """
        if self._emptied != self._storage.emptied:  # since the items were found, or before
            self._forget_episodes()
        view, goals = self._goals.view, np.empty(len(ids), np.int64)
        self._k.choose_goals(
            self._storage.geometry,
            ids,
            self._next_chances(len(ids)),
            view.relabel_fraction,
            get_args(Strategy).index(view.strategy),
            self._goals.following,
            *self._lists,
            goals,
        )
        return goals

    def finish(self, arrays: Sequence[Array], hidden: Sequence[Array], gone: Ids) -> None:
        """Put new goals into a batch, and their returns, unless another process computes them."""
        arrays[self._relabelled][gone] = False
        new = np.flatnonzero(arrays[self._relabelled])
        parts = dict(zip(self._parts, hidden, strict=True))
        goals = (arrays[self._goal] if self._in_parts else parts[GOAL])[new]
        for i, stacked in self._stacked.items():
            arrays[i][new] = goals[:, None] if stacked else goals
        if not self._in_parts:
            replace_returns(self._goals.view, arrays, self._places, new, parts)

    def _forget_episodes(self) -> None:
        self._emptied = self._storage.emptied
        self._lists = self._k.new_lists(self._storage.layout.rows)

    def _next_chances(self, count: int) -> Floats:
        if len(self.chances):
            chances, self.chances = self.chances, np.empty(0)
            return chances
        return np.ones(count) if self.numbers is None else self.numbers.take(count)
