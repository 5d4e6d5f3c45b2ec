"""Numbers are drawn ahead, from a generator of their own, and go on after a restore where they
were.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

from async_loader.replay.samplers.random_numbers import RandomNumbers


def test_numbers_are_those_of_the_generator_however_they_are_taken():
    numbers = RandomNumbers(np.random.SeedSequence(3))
    counts = (1, 7, 16_384, 3, 40_000, 0, 256)
    parts = [numbers.take(count).copy() for count in counts]
    assert [len(part) for part in parts] == list(counts)
    taken = np.concatenate(parts)
    assert taken.dtype == np.float64
    assert (taken == np.random.default_rng(np.random.SeedSequence(3)).random(len(taken))).all()
    assert taken.min() >= 0
    assert taken.max() < 1


@pytest.mark.parametrize("before", [0, 1, 16_383, 16_384, 20_000])
def test_a_restored_one_goes_on_exactly(before):
    numbers = RandomNumbers(np.random.SeedSequence(5))
    numbers.take(before)
    state = copy.deepcopy(numbers.state())
    other = RandomNumbers(np.random.SeedSequence(99))
    other.take(10)
    other.restore(state)
    for count in (1, 256, 17_000, 256):
        assert (numbers.take(count) == other.take(count)).all()
