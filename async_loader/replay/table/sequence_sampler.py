"""Draws sequences of steps, by a sampler that knows nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.samplers import Draw, Items, Sampler
from async_loader.replay.samplers.sampler import Priorities, Rows, wrong_counts
from async_loader.replay.views import Sequences


class InnerSampler:
    """Has ``sampler`` choose among the items that a subclass tells it of.

    Parameters
    ----------
    sampler : Sampler
        Bound to no table.
    items : Items
        Of the table.
    seed : SeedSequence

    Attributes
    ----------
    own_items : Items
        What the sampler chooses among.
    """

    def __init__(self, sampler: Sampler, items: Items, seed: np.random.SeedSequence) -> None:
        self.sampler = sampler
        self.prioritized, self.weighted, self.repeats = (
            sampler.prioritized,
            sampler.weighted,
            sampler.repeats,
        )
        self.own_items = Items(items.rows, column=items.column)
        sampler.bind(self.own_items, seed)

    def _begin(self, rows: Rows) -> Rows:
        """Note items in these rows. Return those that were none, each once, in their order."""
        items = self.own_items
        new: Rows = rows[items.alive[rows] == 0]
        if len(new) > 1:  # a row may be found twice, by the last step and by the end of its episode
            first: Rows = np.sort(np.unique(new, return_index=True)[1])
            new = new[first]
        items.alive[new] = 1
        items.count += len(new)
        items.top = max(items.top, int(new.max(initial=-1)) + 1)
        return new

    def _end(self, rows: Rows) -> Rows:
        """Note that there are no items in these rows. Return those that had one, each once."""
        items = self.own_items
        gone: Rows = np.unique(rows[items.alive[rows] != 0])
        items.alive[gone] = 0
        items.count -= len(gone)
        return gone

    def reset(self) -> None:
        """Forget all items."""
        items = self.own_items
        items.alive[:], items.count, items.top = 0, 0, 0
        reset = getattr(self.sampler, "reset", None)
        if reset is None:
            self.sampler.remove(np.arange(items.rows))
        else:
            reset()

    def forget(self) -> None:
        """Forget what is known of steps: the contents of the table are replaced."""

    def bind(self, items: Items, seed: np.random.SeedSequence) -> None:
        """Do nothing: it was made for its table."""

    def update(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.update`. Rows that hold none of its items are left out."""
        here = self.own_items.alive[rows] != 0
        if here.any():
            self._update(rows[here], priority[here])

    def _update(self, rows: Rows, priority: Priorities) -> None:
        self.sampler.update(rows, priority)

    def changed(self, rows: Rows) -> None:
        """See sampler.py, NOTE [fields of steps]."""
        changed = getattr(self.sampler, "changed", None)
        if changed is not None:
            changed(rows)

    def draw(self, count: int) -> Draw:
        return self.sampler.draw(count)

    def check(self, priority: Priorities) -> None:
        self.sampler.check(priority)

    def state(self) -> dict[str, Any]:
        return self.sampler.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.sampler.restore(state)


_NONE = np.empty(0, np.int64)
_FOUND = 4096
"""Sequences that are noted in one call of a kernel, where no step completes more."""


class SequenceSampler(InnerSampler):
    """Keeps track of which sequences there are, and has a sampler choose among them.

    It is told of steps, as any sampler of the table is. Its items are sequences, each in the row of
    its first step; ``sampler`` is told of these. Thread rule: that of a `Sampler`. Cost: those of
    ``sampler``, and about 10 ns more for each step that is added; 17 bytes for each row.

    Parameters
    ----------
    view : Sequences
    sampler : Sampler
        Bound to no table.
    items : Items
        Of the table.
    geometry : int64 array
        Of the table; see row_format.py.
    seed : SeedSequence

    Attributes
    ----------
    assigned : float64 array [rows]
        The priorities of sequences; NaN: not of this view, or its sampler uses none.
    """

    def __init__(
        self,
        view: Sequences,
        sampler: Sampler,
        items: Items,
        geometry: Ids,
        seed: np.random.SeedSequence,
    ) -> None:
        from async_loader.replay.kernels import sequence_starts  # late: see compiled.py

        self._k, self._g = sequence_starts, geometry
        self.view = view
        super().__init__(sampler, items, seed)
        rows = items.rows
        self._shape = np.array(
            [
                1 << 40 if view.whole else view.span,  # SPAN
                (view.least - 1) * view.dilation + 1,  # SHORTEST
                view.stride,
                view.length if view.whole else 0,  # EPISODES
                view.burn_in * view.dilation,  # LEARNED_FROM
                view.length,  # LEARNED
                view.dilation,  # APART
                1 if view.whole else view.span,  # MOST
                view.crosses,  # GOES_ON
            ],
            np.int64,
        )
        self._seen = np.full(rows, -1, np.int64)
        self.assigned = np.full(rows if sampler.prioritized else 0, np.nan)
        self._position = np.empty(rows, np.int64)

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`. ``rows`` are steps."""
        self._add(self._found(rows))

    def passed(self, rows: Rows) -> None:
        """Find the sequences that end with steps that `insert` is not told of, or was told of
        before their episode ended. See row_format.py, PASSED.
        """
        self._add(self._found(rows))

    def reset(self) -> None:
        """Forget all items. Where steps are in their episodes stays known."""
        super().reset()
        known = np.flatnonzero(self._seen >= 0)
        self._seen[known] = -2 - self._seen[known]

    def _found(self, rows: Rows) -> Rows:
        """Return the sequences that are complete with steps; one may come twice."""
        done, parts = 0, []
        room = len(rows) + int(self._shape[self._k.MOST])
        found, count = (
            np.empty(min(room, max(_FOUND, int(self._shape[self._k.MOST]))), np.int64),
            np.zeros(1, np.int64),
        )
        while done < len(rows):
            done = self._k.find_starts(
                self._g, rows, done, self._shape, self._seen, self._position, found, count
            )
            if done < 0:
                raise wrong_counts(
                    "links do not lead from the first step of an episode to the last"
                )
            parts.append(found[: count[0]].copy())
        return parts[0] if len(parts) == 1 else np.concatenate((*parts, _NONE))

    def _update(self, rows: Rows, priority: Priorities) -> None:
        super()._update(rows, priority)
        self.assigned[rows] = priority

    def _add(self, rows: Rows) -> None:
        """Tell the sampler of the sequences that are new."""
        if not len(rows):
            return
        new = self._begin(rows)
        priority = np.full(len(new), np.nan)
        if self.prioritized:
            self._k.first_priorities(self._g, new, self._shape, self.view.eta, priority)
            told = self.assigned[new]  # NaN where the sampler is not told of them again
            priority = np.where(np.isnan(told), priority, told)
        if len(new):
            self.sampler.insert(new, priority)
            if self.prioritized:
                self.assigned[new] = priority

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`. ``rows`` are steps."""
        items = self.own_items
        gone = self._end(rows)
        if not len(gone):
            return
        if not items.count:  # as in a new table, which has to draw alike
            items.top = 0
        if self.prioritized:
            self.assigned[gone] = np.nan
        self.sampler.remove(gone)

    def forget(self) -> None:
        """Forget which steps came: ids may return as those of other steps."""
        self._seen[:] = -1
        self.assigned[:] = np.nan

    def __repr__(self) -> str:
        return repr(self.sampler)
