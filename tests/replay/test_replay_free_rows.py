"""Rows that are free, told twice."""

import numpy as np

from async_loader.replay.table.free_rows import FreeRows


def test_a_row_that_is_put_twice_is_taken_once():
    """As when Ctrl-C comes between putting rows and noting that they were."""
    free = FreeRows(4, 3)
    taken = [free.take() for _ in range(4)]
    free.put(np.array(taken[:2]))
    free.put(np.array(taken[:3]))
    assert [free.take() for _ in range(3)] == taken[:3]
    free.put(np.array(taken[:1]))
    assert free.take() == taken[0]


def test_a_restored_list_knows_what_is_in_it():
    free = FreeRows(4, 3)
    free.restore({"unused": 4, "free": np.array([2, 0])})
    free.put(np.array([0, 1]))
    assert [free.take() for _ in range(3)] == [2, 0, 1]
