"""A binary tree in an array: node 1 is the root, the children of n are 2n and 2n + 1, leaves are the upper half.

Level by level over a whole batch: the loads of one level do not wait for each other, which is what an item at a time
does. Parents are always computed from their children, so that nothing drifts, and the tree depends on its leaves only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.compiled import kernel

_ONE = np.uint64(1)


@kernel(keeps_gil=True)
def add_up(tree: Any, leaves: int, rows: Any, values: Any, nodes: Any) -> None:
    """Set leaves, the last value of a row that is named twice, and the sums above them. ``nodes`` is scratch."""
    for i in range(len(rows)):
        nodes[i] = leaves + rows[i]
        tree[nodes[i]] = values[i]
    width = leaves
    while width > 1:
        width >>= 1
        for i in range(len(rows)):
            nodes[i] >>= 1
            tree[nodes[i]] = tree[2 * nodes[i]] + tree[2 * nodes[i] + 1]


@kernel(keeps_gil=True)
def bound(tree: Any, leaves: int, rows: Any, values: Any, nodes: Any) -> None:
    """As `add_up`, with the smaller child in place of the sum."""
    for i in range(len(rows)):
        nodes[i] = leaves + rows[i]
        tree[nodes[i]] = values[i]
    width = leaves
    while width > 1:
        width >>= 1
        for i in range(len(rows)):
            nodes[i] >>= 1
            tree[nodes[i]] = min(tree[2 * nodes[i]], tree[2 * nodes[i] + 1])


@kernel(inline=True)
def _descend(tree: Any, leaves: int, masses: Any, rows: Any, values: Any) -> None:
    """The leaves in which ``masses`` of the total fall, and their values, which may take the place of the masses.

    A leaf of 0 is never reached: rounding may carry a mass past the last leaf of a subtree, but not into one without mass.
    Left or right is arithmetic, since branches would be guessed wrong half the time, and indices are unsigned, since signed
    ones are looked at for being negative: together 17 us in place of 45 for 256 of a million.
    """
    for i in range(len(rows)):
        rows[i] = 1
    width = leaves
    while width > 1:
        width >>= 1
        for i in range(len(rows)):
            left = np.uint64(rows[i]) << _ONE
            below, mass = tree[left], masses[i]
            right = np.int64(mass >= below) & np.int64(tree[left | _ONE] > 0.0)
            masses[i] = mass - below * right
            rows[i] = np.int64(left) | right
    for i in range(len(rows)):
        values[i] = tree[np.uint64(rows[i])]
        rows[i] -= leaves


@kernel(keeps_gil=True)
def descend(tree: Any, leaves: int, masses: Any, rows: Any, values: Any) -> None:
    """See `SumTree.find`. The total must be above 0."""
    _descend(tree, leaves, masses, rows, values)


@kernel(keeps_gil=True)
def choose(tree: Any, leaves: int, numbers: Any, stratified: bool, rows: Any, mass: Any) -> None:
    """Draw rows in proportion to their leaves, one from each of equal parts or independently; and what those leaves hold."""
    total, count = tree[1], len(rows)
    for i in range(count):
        mass[i] = (i + numbers[i]) * (total / count) if stratified else numbers[i] * total
    _descend(tree, leaves, mass, rows, mass)


@kernel(keeps_gil=True)
def weigh(mass: Any, base: float, beta: float, weight: Any) -> None:
    """``(base / mass) ** beta``; a base of 0 is the least mass."""
    if base <= 0.0:
        base = mass[0]
        for i in range(1, len(mass)):
            base = min(base, mass[i])
    for i in range(len(mass)):
        weight[i] = (base / mass[i]) ** beta


@kernel(keeps_gil=True)
def first_refused(priority: Any, largest: float, may_lack: bool) -> int:
    """The first priority that is not a number from 0 to ``largest`` (nor, with ``may_lack``, NaN); -1 if all are."""
    for i in range(len(priority)):
        p = priority[i]
        if not (p >= 0.0 and p <= largest) and not (may_lack and p != p):
            return i
    return -1
