"""A sampler with a table's part played for it, and the arithmetic that its draws are held
against.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from async_loader.replay.samplers import Items, Sampler

BARELY = 3.72  # a fair sampler goes beyond it with a chance of 1 in 10,000; seeds are fixed


class Rig:
    """Keeps `Items` as a table does, before it tells the sampler."""

    def __init__(self, sampler: Sampler, rows: int = 64, seed: int = 0) -> None:
        self.sampler, self.seed = sampler, seed
        self.items = _items(rows)
        sampler.bind(self.items, np.random.SeedSequence(seed))

    def insert(self, rows: Any, priority: Any = None) -> None:
        rows = np.array(rows, np.int64).reshape(-1)
        self.items.alive[rows] = 1
        self.items.count += len(rows)
        self.items.top = max(self.items.top, int(rows.max(initial=-1)) + 1)
        self.sampler.insert(
            rows, np.full(len(rows), np.nan) if priority is None else _floats(priority, rows)
        )

    def remove(self, rows: Any) -> None:
        rows = np.array(rows, np.int64).reshape(-1)
        self.items.alive[rows] = 0
        self.items.count -= len(rows)
        self.sampler.remove(rows)

    def update(self, rows: Any, priority: Any) -> None:
        rows = np.array(rows, np.int64).reshape(-1)
        self.sampler.update(rows, _floats(priority, rows))

    def rows(self, count: int) -> list[int]:
        return [int(row) for row in self.sampler.draw(count).rows]


def _items(rows: int) -> Items:
    """Items whose steps have fields: small numbers, whatever the name."""
    return Items(rows, column=lambda name: np.arange(rows) % 5)


def _floats(priority: Any, rows: Any) -> Any:
    return np.broadcast_to(np.array(priority, np.float64), rows.shape).copy()


def surprise(counts: Any, chances: Any) -> float:
    """Pearson's chi-square as standard deviations of a normal one (Wilson and Hilferty 1931)."""
    expected = np.asarray(chances, np.float64) / np.sum(chances) * np.sum(counts)
    assert expected.min() >= 10, "too few draws to judge by"
    freedom = len(expected) - 1
    squares = float(((counts - expected) ** 2 / expected).sum())
    return ((squares / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def tally(rig: Rig, rows: int, draws: int, count: int) -> Any:
    """How often each row is drawn."""
    return np.bincount(
        np.concatenate([rig.sampler.draw(count).rows for _ in range(draws)]), minlength=rows
    )


def sums_are_exact(tree: Any) -> None:
    parents, children = parents_of(tree)
    while children.shape[1] > 1:  # two by two
        children = children[:, ::2] + children[:, 1::2]
    assert (parents == children[:, 0]).all()


def minima_are_exact(tree: Any) -> None:
    parents, children = parents_of(tree)
    assert (parents == children.min(axis=1)).all()


def parents_of(tree: Any) -> Any:
    """The values of nodes that have children, and those of the children."""
    children = tree.nodes[8:].reshape(-1, 8)
    return tree.nodes[7 : 7 + len(children)], children
