"""Rows that were drawn and not delivered, because Ctrl-C interrupted the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from async_loader.replay.array_types import Array


class UndeliveredItems:
    """What a call has taken out of a table and not delivered yet.

    Attributes
    ----------
    key : int
        The id of the read plan.
    arrays : sequence of arrays [rows, *shape]
        Rows that are used up.
    counted : int
        Rows that were counted as sampled and are not used up.
    """

    __slots__ = ("arrays", "counted", "key")

    def __init__(self) -> None:
        self.key = self.counted = 0
        self.arrays: Sequence[Array] = ()


class KeptRows(NamedTuple):
    """The first rows that interrupted calls have left, and the rest without them."""

    arrays: Sequence[Array]
    rows: int
    rest: dict[int, list[list[Array]]]


class InterruptedRows:
    """Rows that interrupted calls have used up: they come with the next batch of their read plan.

    Called under the table's lock.

    Attributes
    ----------
    by_plan : dict of int to list of lists of arrays [rows, *shape]
        By the id of a read plan: the rows of each interrupted call.
    """

    def __init__(self) -> None:
        self.by_plan: dict[int, list[list[Array]]] = {}

    def keep(self, key: int, arrays: Sequence[Array]) -> None:
        """Keep rows for the next batch of a read plan."""
        self.by_plan.setdefault(key, []).append(list(arrays))

    def first(self, key: int, count: int) -> KeptRows:
        """Return up to ``count`` rows of a read plan, and what is kept without them.

        Changes nothing.
        """
        kept = self.by_plan.get(key)
        if not kept:
            return KeptRows((), 0, self.by_plan)
        whole = joined(*kept) if len(kept) > 1 else kept[0]
        rows = min(count, len(whole[0]))
        rest = {one: arrays for one, arrays in self.by_plan.items() if one != key}
        if rows < len(whole[0]):
            rest[key] = [[array[rows:] for array in whole]]
        return KeptRows([np.ascontiguousarray(array[:rows]) for array in whole], rows, rest)

    def count(self, key: int | None = None) -> int:
        """Return how many rows are kept, for one read plan or for all."""
        found = self.by_plan.values() if key is None else [self.by_plan.get(key, [])]
        return sum(len(arrays[0]) for kept in found for arrays in kept)


def joined(*parts: Sequence[Array]) -> list[Array]:
    """Concatenate parts of a batch, field by field. An empty part has no arrays."""
    there = [part for part in parts if len(part)]
    if len(there) == 1:
        return list(there[0])
    return [np.concatenate(arrays) for arrays in zip(*there, strict=True)]
