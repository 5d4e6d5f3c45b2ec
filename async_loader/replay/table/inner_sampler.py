"""What samplers have in common that have another sampler choose among items of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.samplers import Draw, Items, Sampler
from async_loader.replay.samplers.sampler import Priorities, Rows


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
            self.sampler.update(rows[here], priority[here])

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
