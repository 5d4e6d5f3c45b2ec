"""Draws sequences of steps, by a sampler that knows nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from async_loader.errors import Broken
from async_loader.interrupts import SignalsDeferred
from async_loader.replay.array_types import Ids
from async_loader.replay.base import sequence_table as q
from async_loader.replay.samplers import Items, Sampler
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.samplers.sampler import Priorities, Rows
from async_loader.replay.table.inner_sampler import InnerSampler
from async_loader.replay.views import Sequences

_NONE = np.empty(0, np.int64)
_FOUND = 4096
"""Sequences that are noted in one call of a kernel, where no step completes more."""


class SteppedTable(Protocol):
    """What is asked of a table.

    Attributes
    ----------
    g : int64 array
        The geometry.
    given : float64 array [rows]
        The priorities of steps: what they came with, or were given since; NaN without one.
    """

    g: Ids
    given: Priorities


class SequenceSampler(InnerSampler):
    """Keeps track of which sequences there are, and has a sampler choose among them.

    It is told of steps, as any sampler of the table is. Its items are sequences, each in the row of
    its first step; ``sampler`` is told of these. Thread rule: that of a `Sampler`. Cost: those of
    ``sampler``, and about 10 ns more for each step that is added; 17 bytes for each row, 25 with
    priorities.

    Parameters
    ----------
    view : Sequences
    sampler : Sampler
        Bound to no table.
    items : Items
        Of the table.
    table : callable
        Returns the table, as it is now.
    seed : SeedSequence
    """

    def __init__(
        self,
        view: Sequences,
        sampler: Sampler,
        items: Items,
        table: Callable[[], SteppedTable],
        seed: np.random.SeedSequence,
    ) -> None:
        from async_loader.replay.kernels import sequence_starts  # late: see compiled.py

        self._k, self._table = sequence_starts, table
        self.view = view
        super().__init__(sampler, items, seed)
        rows = items.rows
        self._shape = np.zeros(q.TRACKING, np.int64)
        self._shape[q.SPAN] = 1 << 40 if view.whole else view.span
        self._shape[q.SHORTEST] = (view.least - 1) * view.dilation + 1
        self._shape[q.STRIDE] = view.stride
        self._shape[q.EPISODES] = view.length if view.whole else 0
        self._shape[q.LEARNED_FROM] = view.burn_in * view.dilation
        self._shape[q.LEARNED], self._shape[q.STEP] = view.length, view.dilation
        self._shape[q.MOST] = 1 if view.whole else view.span
        self._shape[q.GOES_ON] = view.crosses
        self._seen = np.full(rows, -1, np.int64)
        self._position = np.empty(rows, np.int64)
        self._any_given = False
        # of sequences, since they were added
        self._updated = np.full(rows if self.prioritized else 0, np.nan)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`. ``rows`` are steps."""
        if self.prioritized:
            self._any_given |= not bool(np.isnan(priority).all())
        self._add(self._found(rows))

    def passed(self, rows: Rows) -> None:
        """Find the sequences that end with steps that `insert` is not told of, or was told of
        before their episode ended. See row_format.py, PASSED.
        """
        self._add(self._found(rows))

    def find_again(self, items: Rows, passed: Rows) -> None:
        """Leave out the sequences whose last steps are items no more: they wait for successors.

        ``items``, ``passed``: all that `insert` and `passed` would be told of now.
        """
        known = np.flatnonzero(self._seen >= 0)
        self._seen[known] = -2 - self._seen[known]  # where they are in their episodes stays
        there = np.zeros(len(self._seen), np.bool_)
        there[self._found(items)] = there[self._found(passed)] = True
        self.remove(np.flatnonzero((self.own_items.alive != 0) & ~there))

    def _found(self, rows: Rows) -> Rows:
        """Return the sequences that are complete with steps; one may come twice."""
        g, done, parts = self._table().g, 0, []
        room = len(rows) + int(self._shape[q.MOST])
        found, count = (
            np.empty(min(room, max(_FOUND, int(self._shape[q.MOST]))), np.int64),
            np.zeros(1, np.int64),
        )
        while done < len(rows):
            done = self._k.find_starts(
                g, rows, done, self._shape, self._seen, self._position, found, count
            )
            if done < 0:
                raise Broken(
                    f"the links of steps {self._seen[rows].tolist()[:8]} do not lead from the "
                    "first to the last of their episode: save the table, and load it again"
                )
            parts.append(found[: count[0]].copy())
        return parts[0] if len(parts) == 1 else np.concatenate((*parts, _NONE))

    def _add(self, rows: Rows) -> None:
        """Tell the sampler of the sequences that are new."""
        if not len(rows):
            return
        with SignalsDeferred():  # a call that is repeated passes over what is alive
            new = self._begin(rows)
            priority = np.full(len(new), np.nan)
            if self._any_given:
                table = self._table()
                self._k.first_priorities(
                    table.g, new, table.given, self._shape, self.view.eta, priority
                )
            if len(new):
                self.sampler.insert(new, priority)

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`. ``rows`` are steps."""
        items = self.own_items
        with SignalsDeferred():  # a call that is repeated passes over what is gone
            gone = self._end(rows)
            if not len(gone):
                return
            if not items.count:  # as in a new table, which has to draw alike
                items.top = 0
            self.sampler.remove(gone)
            if self.prioritized:
                self._updated[gone] = np.nan

    def update(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.update`. Rows in which no sequence begins are left out."""
        if self.prioritized:
            self._updated[rows] = priority
            self._any_given = True
        super().update(rows, priority)

    def forget(self) -> None:
        """Forget which steps came: ids may return as those of other steps."""
        self._seen[:] = -1
        self._updated[:] = np.nan

    def saved(self, ids: Ids) -> dict[str, Any]:
        """Return what a save holds beside `state`, by the ids of steps.

        ``ids [rows]``: those of the table. O(rows), about 3 ms for a million.
        """
        here = np.flatnonzero(self.own_items.alive)
        made: dict[str, Any] = {"ids": ids[here], "top": self.own_items.top}
        if self.prioritized:
            made["updated"] = self._updated[here]
        if self._shape[q.STRIDE] > 1 and not self.view.whole:
            # their first steps may be gone, here or in a smaller table
            rows = np.flatnonzero((self._seen == ids) & (ids >= 0))
            rows = rows[self._position[rows] > 0]
            rows = rows[np.argsort(ids[rows], kind="stable")]  # in a smaller table the newest stay
            made["first"], made["position"] = ids[rows], self._position[rows]
        return made

    def begin_at(self, saved: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Count steps from where they were counted in a save, before `insert` is told of them.

        ``state``: what the sampler goes on with, a part of a `state`.
        """
        self.sampler.restore({**self.sampler.state(), **state})
        if "first" in saved:
            rows = saved["first"] % len(self._seen)
            self._seen[rows] = -2 - saved["first"]
            self._position[rows] = saved["position"]

    def has_all(self, saved: Mapping[str, Any], ids: Ids) -> bool:
        """Return whether there are the sequences of a save, and no others."""
        here = np.flatnonzero(self.own_items.alive)
        return bool(np.array_equal(ids[here], saved["ids"]))

    def go_on(self, saved: Mapping[str, Any], state: dict[str, Any]) -> None:
        """Have the sampler continue from a `state` of the sequences that there are."""
        items = self.own_items
        items.top = max(items.top, saved.get("top", 0))  # which decides how rows are drawn
        self.sampler.remove(np.flatnonzero(self.own_items.alive))
        self.sampler.restore(state)

    def remember(self, saved: Mapping[str, Any], ids: Ids) -> None:
        """Note the priorities that sequences which are still there were given before a save."""
        if self.prioritized:
            names, rows = saved["ids"], saved["ids"] % len(ids)
            known = (ids[rows] == names) & (self.own_items.alive[rows] != 0)
            self._updated[rows[known]] = saved["updated"][known]

    def tell_again(
        self, names: Ids, priority: Priorities, ids: Ids, state: Mapping[str, Any]
    ) -> None:
        """Tell the sampler of the sequences that are still there as that of a save was told.

        Parameters
        ----------
        names, priority : int64, float64 array
            Of the saved sequences, in order.
        state : mapping
            What it goes on with.
        """
        rows = names % len(ids)
        known = (ids[rows] == names) & (self.own_items.alive[rows] != 0)
        rows, priority = rows[known], priority[known]
        if self.prioritized:
            priority = np.where(np.isnan(self._updated[rows]), priority, self._updated[rows])
        self.sampler.remove(rows)
        self.sampler.insert(rows, priority)
        self.sampler.restore({**self.sampler.state(), **state})

    @property
    def _numbers(self) -> RandomNumbers | None:
        """The random numbers, which `Seeded` exchanges."""
        return getattr(self.sampler, "_numbers", None)

    @_numbers.setter
    def _numbers(self, numbers: RandomNumbers) -> None:
        self.sampler._numbers = numbers  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(self.sampler)
