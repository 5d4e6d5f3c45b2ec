"""Trees of sums and minima: every parent is that of its children, and no mass leads to a row
without any.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_rig import minima_are_exact, sums_are_exact

from async_loader.replay.base.compiled import kernel
from async_loader.replay.samplers import row_kernels
from async_loader.replay.samplers.prioritized import MinTree, SumTree

values = st.sampled_from(
    [0.0, 0.0, 5e-324, 1e-300, 1e-16, 0.1, 1 / 3, 1.0, 1e16, 1e200]
) | st.floats(0, 1e200)
BELOW_ONE = np.nextafter(1.0, 0.0)


_descend = row_kernels._descend


@kernel()
def descend(tree, leaves, masses, rows, values):
    _descend(tree, leaves, masses, rows, values)


def find(tree, masses):
    """The rows in which masses from 0 to the total fall, and their values: by the kernel itself,
    which a draw calls with numbers that were scaled.
    """
    rows, values = np.empty(len(masses), np.int64), np.empty(len(masses))
    descend(tree.nodes, tree.first, masses, rows, values)
    return rows, values


def tree_of(masses):
    tree = SumTree(len(masses))
    tree.set(np.arange(len(masses)), np.array(masses, np.float64))
    return tree


@settings(max_examples=80, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 7, 8, 9, 65]),
    changes=st.lists(st.lists(st.tuples(st.integers(0, 99), values), max_size=12), max_size=8),
)
def test_every_parent_is_exactly_that_of_its_children(rows, changes):
    sums, minima, expected = SumTree(rows), MinTree(rows), np.zeros(rows)
    for change in changes:
        at, mass = (
            np.array([row % rows for row, _ in change], np.int64),
            np.array([m for _, m in change], np.float64),
        )
        sums.set(at, mass)
        minima.set(at, np.where(mass > 0, mass, np.inf))
        for row, m in zip(at, mass, strict=True):  # of a row that is named twice the last counts
            expected[row] = m
        sums_are_exact(sums)
        minima_are_exact(minima)
        assert (sums.leaves[:rows] == expected).all()
        assert minima.root == min((m for m in expected if m > 0), default=np.inf)
    again = tree_of(expected)  # nothing drifts: the tree depends on its leaves only
    assert (again.nodes[7:] == sums.nodes[7:]).all()


@settings(max_examples=150, deadline=None)
@given(
    masses=st.lists(values, min_size=1, max_size=40),
    parts=st.lists(st.floats(0, BELOW_ONE), max_size=20),
)
def test_no_mass_leads_to_a_row_without_any(masses, parts):
    tree = tree_of(masses)
    if tree.root == 0:
        return
    total = tree.root
    edges = np.concatenate((np.cumsum(masses), [total, np.nextafter(total, np.inf), total * 2]))
    asked = np.concatenate(
        (np.array(parts) * total, edges, np.nextafter(edges, 0.0), [0.0, 5e-324])
    )
    rows, found = find(tree, asked.copy())
    assert rows.min() >= 0
    assert rows.max() < len(masses)
    assert (found > 0).all()
    assert (found == np.array(masses)[rows]).all()


@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.integers(0, 2**20), min_size=1, max_size=64),
    parts=st.lists(st.integers(0, 2**30), min_size=1),
)
def test_the_row_is_that_of_the_exact_prefix_sum(weights, parts):
    total = sum(weights)
    if not total:
        return
    asked = [part % total for part in parts]
    rows, _ = find(tree_of(weights), np.array(asked, np.float64))  # integers: sums are exact
    edges = np.cumsum(weights)
    assert (rows == np.searchsorted(edges, asked, side="right")).all()
