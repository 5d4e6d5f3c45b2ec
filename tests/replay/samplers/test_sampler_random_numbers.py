"""Numbers are drawn ahead, from a generator of their own, and go on after a restore where they
were.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

from async_loader.errors import ConfigError
from async_loader.replay.samplers import Linear
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


def test_a_state_stays_what_it_was_while_numbers_are_taken():
    numbers = RandomNumbers(np.random.SeedSequence(5))
    numbers.take(3)
    state = numbers.state()
    expected = numbers.take(20_000).copy()
    other = RandomNumbers(np.random.SeedSequence(0))
    other.restore(state)
    assert (other.take(20_000) == expected).all()


def test_the_global_generator_is_left_alone():
    np.random.seed(1)
    expected = np.random.RandomState(1).random()
    RandomNumbers(np.random.SeedSequence(1)).take(10)
    assert np.random.random() == expected


def test_importing_the_samplers_imports_no_numba():
    code = "import sys, async_loader.replay.samplers; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_schedule_goes_from_start_to_end_and_stays():
    linear = Linear(0.4, 1.0, 3)
    assert [linear.at(draw) for draw in range(5)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])


def test_a_schedule_of_nonsense_is_refused():
    for arguments in (
        (-0.1, 1.0, 3),
        (0.1, float("nan"), 3),
        (0.1, 1.0, 0),
        (0.1, 1.0, 2.5),
        (True, 1.0, 3),
        (0.1, "1", 3),
    ):
        with pytest.raises(ConfigError, match=r"(start|end|draws)="):
            Linear(*arguments)
