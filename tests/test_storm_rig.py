"""The rig that raises Ctrl-C at chosen points does so at each of them, once,
and leaves no trace function behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from storm_rig import alarms, count_points, some_points, strike

HERE = (__file__,)


def call(done: list[str]) -> str:
    done.append("first")
    for name in ("a", "b"):
        done.append(name)
    return "whole"


def test_every_point_of_a_call_can_be_struck_and_the_call_ends_there() -> None:
    total = count_points(lambda: call([]), within=HERE)
    assert total >= 5  # the start of a function, two appends, a loop that jumps back
    lengths = []
    for at in range(1, total + 1):
        done: list[str] = []
        struck = strike(lambda done=done: call(done), at, within=HERE)
        assert isinstance(struck.raised, KeyboardInterrupt)
        assert "test_storm_rig.py" in struck.where
        lengths.append(len(done))
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 1, 2, 3}, "before, between and after every effect"
    assert sys.gettrace() is None


def test_a_point_beyond_the_last_leaves_the_call_alone() -> None:
    struck = strike(lambda: call([]), 1000, within=HERE)
    assert (struck.raised, struck.where, struck.result) == (None, "", "whole")


def test_an_assignment_of_several_names_is_not_torn() -> None:
    class Two:
        a = b = 0

    def both(two: Two) -> None:
        two.a, two.b = 1, 1

    for at in range(1, 10):
        two = Two()
        strike(lambda two=two: both(two), at, within=HERE)
        assert two.a == two.b


def test_samples_of_points_are_seeded_and_within_bounds() -> None:
    assert some_points(5, 10) == [1, 2, 3, 4, 5]
    sample = some_points(1000, 20, seed=1)
    assert sample == some_points(1000, 20, seed=1)
    assert sample != some_points(1000, 20, seed=2)
    assert len(set(sample)) == 20
    assert set(sample) <= set(range(1, 1001))


def spin(arm: Callable[[], None]) -> None:
    arm()
    while True:
        pass


def test_an_alarm_is_a_real_signal_and_comes_once() -> None:
    with alarms(seed=0) as arm, pytest.raises(KeyboardInterrupt):
        spin(arm)
    total = sum(range(100_000))  # a second signal would end this
    assert total == 4999950000
