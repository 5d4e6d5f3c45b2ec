"""Reads transitions with hindsight goals out of a table, in any process, without a lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError
from async_loader.names import describe
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
from async_loader.replay.hindsight_view import GoalFunction
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
        plan, n = self._goals, self.read_plan.n
        self._walk(ids, taken)
        arrays = self._goal_arrays(len(ids))
        new = np.flatnonzero(self._choose(taken, arrays))
        rewards, ended = np.zeros((len(new), n)), np.zeros((len(new), n), np.bool_)
        goals: Array = arrays[t.GOAL][new]
        if len(new):
            there = np.arange(n) < taken[new, None]
            achieved, desired = arrays[t.ACHIEVED][new][there], goals.repeat(taken[new], axis=0)
            info = {
                name: array[new][there]
                for name, array in zip(plan.view.info, arrays[t.ACHIEVED + 1 :], strict=True)
            }
            given = achieved, desired, info
            rewards[there] = _called("compute_reward", plan.view.compute_reward, *given)
            if plan.view.compute_terminated is not None:
                function = plan.view.compute_terminated
                ended[there] = _called("compute_terminated", function, *given) != 0
                _cut_off(ended, rewards, taken, new)
        self._returns(taken, into)
        gone = self._copy(fields, taken)
        self._put(into, new, goals, rewards, ended, taken)
        return gone

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

    def _put(
        self, into: Window, new: Ids, goals: Array, rewards: Floats, ended: Bools, taken: Ids
    ) -> None:
        """Put the new goals of items, and what follows from them, into their places."""
        plan, arrays = self._goals, into.fields
        arrays[self._index - 2][...] = False
        if not len(new):
            return
        arrays[self._index - 2][new] = True
        for i in plan.goals:
            stacked = self.read_plan.outputs[i].frames > 1
            arrays[i][new] = goals[:, None] if stacked else goals
        gamma = self.read_plan.gamma
        arrays[plan.reward][new] = rewards @ gamma ** np.arange(self.read_plan.n)
        if plan.view.compute_terminated is None:
            return
        last = ended.any(axis=1)
        arrays[self._index - 1][new] = np.where(last, 0.0, gamma ** taken[new])
        if plan.terminated >= 0:
            arrays[plan.terminated][new] = last
        if plan.done >= 0:
            cut = plan.truncated >= 0 and (arrays[plan.truncated][new] != 0)
            arrays[plan.done][new] = last | (cut & (arrays[plan.done][new] != 0))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage, self.read_plan)


def _cut_off(ended: Bools, rewards: Floats, taken: Ids, new: Ids) -> None:
    """End each return with the first of its steps that terminated."""
    last = ended.any(axis=1)
    taken[new] = np.where(last, ended.argmax(axis=1) + 1, taken[new])
    beyond = np.arange(ended.shape[1]) >= taken[new, None]
    rewards[beyond], ended[beyond] = 0.0, False


def _called(
    parameter: str, function: GoalFunction, achieved: Array, desired: Array, info: dict[str, Array]
) -> Array:
    """Return what a function of goals gives, ``[n]``.

    Raises
    ------
    ConfigError
        For any other shape, and for numbers that are not finite.
    """
    array = tensors.to_array(function(achieved, desired, info))
    if not array.ndim or array.size != len(achieved) or array.dtype.kind not in "biuf":
        raise ConfigError(
            f"{parameter}={describe(function)} gave {array.dtype.name}{list(array.shape)} for "
            f"goals {list(achieved.shape)}: return one number for each, [{len(achieved)}]"
        )
    array = array.reshape(len(achieved))
    if not np.isfinite(array).all():
        wrong = np.flatnonzero(~np.isfinite(array))
        first = int(wrong[0])
        raise ConfigError(
            f"{parameter}={describe(function)} gave {array[first]} in row {first} of "
            f"{len(achieved)} ({len(wrong)} such rows): it achieved {achieved[first]} and its goal "
            f"was {desired[first]}; return finite numbers, and store finite goals"
        )
    return array
