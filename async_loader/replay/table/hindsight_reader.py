"""Reads transitions with hindsight goals out of a table, in any process, without a lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Array, Bools, Floats, Ids
from async_loader.replay.base import episode_lists
from async_loader.replay.base import goal_table as t
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
    WRITING,
)
from async_loader.replay.goal_returns import NewGoals, ReturnPlaces, put_returns, returns_of
from async_loader.replay.hindsight_parts import EACH
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.storage import Storage
from async_loader.source import Seed, Window

_FAR = 100_000
"""Rows that are visited in some hundred microseconds. See compiled.kernel."""


class HindsightReader(ReplayReader):
    """As `ReplayReader`; an index has one more column, the bits of a float64 in [0, 1) that chooses
    the goal of each item. So goals do not depend on how a batch is divided between workers.

    Walks an episode from link to link once, and keeps the ids of its steps: 8 to 24 bytes for each
    row of the table, in each reader. Cost of the walk: 6 ns a step, where rows lie in order; of a
    draw then: independent of the episode's length.

    Parameters
    ----------
    storage : Storage
    read_plan : ReadPlan
        Of a view of hindsight goals.
    numbers : RandomNumbers, optional
        For `take` and `fill`, where there is no index.
    """

    def __init__(
        self, storage: Storage, read_plan: ReadPlan, numbers: RandomNumbers | None = None
    ) -> None:
        super().__init__(storage, read_plan)
        from async_loader.replay.kernels import goals  # late: see compiled.py

        assert read_plan.goals is not None
        self._kernel, self._goals = goals, read_plan.goals
        self._numbers, self._chances = numbers, np.empty(0)
        of = read_plan.goals
        discount = self._index - 1
        self._places = ReturnPlaces(of.reward, of.terminated, of.done, of.truncated, discount)
        self._far = storage.on_disk  # a walk that may wait for a disk releases the GIL
        self._shape = np.zeros(t.READING, np.int64)
        self._shape[t.BEFORE] = read_plan.depth
        self._shape[t.FOLLOWING] = self._goals.following
        self._shape[t.STRATEGY] = t.STRATEGIES.index(self._goals.view.strategy)
        self._forget_episodes()
        layout = storage.layout
        achieved = self._goals.achieved
        self._read_from = (achieved, achieved, *self._goals.info)
        self._read_fields = np.zeros((len(self._read_from), WRITING), np.int64)
        for f, i in enumerate(self._read_from):
            offset, stride = layout.places[i]
            self._read_fields[f, ROW_ADDRESS] = storage.base + offset
            self._read_fields[f, ROW_STRIDE] = stride
            self._read_fields[f, NBYTES] = layout.schema.fields[i].nbytes

    def at_once(self, count: int) -> bool:
        """Return False: an episode is walked without the lock, and `compute_reward` called."""
        return False

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """See `ReplayReader.read`. ``index [rows, 2]``, or ``[rows, 3]`` with weights."""
        self._numbers = RandomNumbers(np.random.SeedSequence(seed))  # for items that replace others
        self._chances = np.ascontiguousarray(index[:, -1]).view(np.float64)
        try:
            super().read(index[:, :-1] if self.read_plan.weighted else index[:, 0], into, seed)
        finally:
            self._chances = np.empty(0)

    def _linked(self, ids: Ids, fields: Ids, taken: Ids, into: Window) -> int:
        self._walk(ids, taken)
        arrays = self._goal_arrays(len(ids))
        new = np.flatnonzero(self._choose(taken, arrays))
        goals = self._new_goals(arrays, new, taken)
        returns = returns_of(self._goals.view, goals)
        taken[new] = returns.steps
        self._returns(taken, into)
        gone = self._copy(fields, taken)
        self._put_goals(into, new, goals)
        put_returns(self._goals.view, into.fields, self._places, new, returns)
        return gone

    def _new_goals(self, arrays: list[Array], new: Ids, taken: Ids) -> NewGoals:
        names = self._goals.view.info
        info = {
            name: array[new] for name, array in zip(names, arrays[t.ACHIEVED + 1 :], strict=True)
        }
        return NewGoals(arrays[t.GOAL][new], arrays[t.ACHIEVED][new], info, taken[new])

    def _choose(self, taken: Ids, arrays: list[Array]) -> Bools:
        """Choose and copy new goals. Return which items have one."""
        relabelled, fields = np.empty(len(taken), np.uint8), self._read_fields
        for f, array in enumerate(arrays):
            fields[f, ARRAY_ADDRESS] = address_of(array)
            fields[f, ARRAY_STRIDE] = array.strides[0]
        if self._emptied != self._storage.emptied:  # since the items were found, or before
            self._forget_episodes()
        choose = self._kernel.choose_far_goals if self._far else self._kernel.choose_goals
        visited = choose(
            self._storage.geometry,
            self._next_chances(len(taken)),
            self._goals.view.relabel_fraction,
            self._shape,
            fields,
            self._names,
            self._stamps,
            taken,
            *self._lists,
            np.empty(len(taken), np.int64),
            relabelled,
        )
        self._far = visited > _FAR or self._storage.on_disk
        return relabelled.view(np.bool_)

    def _forget_episodes(self) -> None:
        self._emptied = self._storage.emptied
        self._lists = episode_lists.new_lists(self._storage.layout.rows)

    def _next_chances(self, count: int) -> Floats:
        if len(self._chances):
            given, self._chances = self._chances, np.empty(0)
            return given
        if self._numbers is None:  # of a copy in another process, which is being prepared
            return np.ones(count)
        return self._numbers.take(count)

    def _goal_arrays(self, count: int) -> list[Array]:
        """Return new arrays: the goals, what each step achieved, and what else is known of it."""
        fields, n = self._storage.layout.schema.fields, self.read_plan.n
        return [
            np.empty(
                (count, *fields[i].shape) if f == t.GOAL else (count, n, *fields[i].shape),
                fields[i].dtype,
            )
            for f, i in enumerate(self._read_from)
        ]

    def _put_goals(self, into: Window, new: Ids, goals: NewGoals) -> None:
        """Put new goals into their places, and say which items have one."""
        arrays = into.fields
        arrays[self._index - 2][...] = False
        arrays[self._index - 2][new] = True
        for i in self._goals.goals:
            stacked = self.read_plan.outputs[i].frames > 1
            arrays[i][new] = goals.goals[:, None] if stacked else goals.goals

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage, self.read_plan)


class HindsightPartsReader(HindsightReader):
    """As `HindsightReader`, for a process that calls no function of the view: it shows what they
    need. See NOTE [parts] in hindsight_parts.py.
    """

    def _linked(self, ids: Ids, fields: Ids, taken: Ids, into: Window) -> int:
        self._walk(ids, taken)
        arrays = self._goal_arrays(len(ids))
        new = np.flatnonzero(self._choose(taken, arrays))
        goals = self._new_goals(arrays, new, taken)
        self._returns(taken, into)
        self._put_parts(into, new, goals)
        self._put_each(fields, new, taken, into)
        gone = self._copy(fields, taken)
        self._put_goals(into, new, goals)
        return gone

    def _put_parts(self, into: Window, new: Ids, goals: NewGoals) -> None:
        first = len(self.read_plan.outputs)
        there = np.arange(self.read_plan.n) < goals.steps[:, None]
        given: list[Array] = [goals.goals, goals.steps]
        for array in (goals.achieved, *goals.info.values()):
            shown = np.zeros_like(array)
            shown[there] = array[there]
            given.append(shown)
        for part, array in zip(into.fields[first:], given, strict=False):
            part[...] = 0
            part[new] = array

    def _put_each(self, fields: Ids, new: Ids, taken: Ids, into: Window) -> None:
        """Copy what shorter returns of the items with new goals would show."""
        plan = self.read_plan
        each = [
            (int(one.name.removeprefix(EACH)), into.fields[len(plan.outputs) + i])
            for i, one in enumerate(plan.parts)
            if one.name.startswith(EACH)
        ]
        for _, part in each:
            part[...] = 0
        if not each:
            return
        copied = fields[[j for j, _ in each]].copy()
        copied[:, ARRAY_STRIDE] = [part.strides[0] for _, part in each]
        for k in range(1, plan.n):
            copied[:, ARRAY_ADDRESS] = [address_of(part[:, k - 1]) for _, part in each]
            steps = np.zeros_like(taken)
            steps[new] = np.where(taken[new] >= k, k, 0)
            self._copy(copied, steps)
