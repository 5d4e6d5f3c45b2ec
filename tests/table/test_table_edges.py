"""Edges at which tables might differ: priorities, names, views and steps that are refused, and
calls before there is a step.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from table_rig import Making, until

from async_loader import (
    Field,
    MinSize,
    ReplayBuffer,
    Transitions,
)
from async_loader.errors import ConfigError, Unsupported

pytestmark = pytest.mark.usefixtures("near_feeders")

FOLLOWED = {"obs": Field((), "float32", next="next_obs"), "terminated": "bool", "truncated": "bool"}


def steps(rows: int) -> dict[str, Any]:
    return {"x": np.arange(rows), "reward": np.zeros(rows, np.float32)}


# -- priorities ------------------------------------------------------------------------------------


def test_priorities_that_nothing_goes_by_are_refused_and_the_writer_goes_on(
    writing: Making,
) -> None:
    table = writing.table()
    writer = writing.writer(table)
    for call in (
        lambda: writer.append(x=1, reward=0.5, priority=1.0),
        lambda: writer.extend(steps(2), priority=[1.0, 2.0]),
        lambda: writer.extend(steps(2), priority=[1.0, math.nan]),
        lambda: writer.append(x=1, reward=0.5, priority=1.0),
    ):
        with pytest.raises(
            Unsupported,
            match=r"^this table's Uniform\(.*\) and Fifo\(\) use no priorities: leave them out",
        ):
            call()
    writer.append(x=1, reward=0.5)
    writer.flush()
    assert len(table) == 1


# -- before the first step -------------------------------------------------------------------------


# -- names of streams ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [1.5, ("a", (0.25, None)), np.float32(0.5), np.int64(3)], ids=repr)
def test_a_stream_that_may_be_named_so_is_saved_and_found_again(
    make: Making, name: Any, folder: Any
) -> None:
    table = make.table(100, {"reward": "float32"}, view=Transitions(2, 0.5))
    writer = make.writer(table, name)
    writer.append(reward=1.0)
    writer.flush()
    table.save(folder)
    table.load(folder)
    writer.append(reward=2.0)
    writer.end_episode(stream=name)
    writer.flush()
    assert table.get(range(9))["reward"].tolist() == [1.0, 2.0]


class Name:
    def __repr__(self) -> str:
        return "Name"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [frozenset({1}), Name(), b"a", math.nan, math.inf, 1j, ("a", b"b"), ("a", math.nan)],
    ids=repr,
)
def test_a_stream_that_could_not_be_saved_is_refused_at_once(writing: Making, name: Any) -> None:
    table = writing.table(100, {"x": "int64"})
    writer = writing.writer(table)
    said = "cannot be saved: name streams by numbers, strings, or tuples of these"
    for call in (
        lambda: writer.append(x=1, stream=name),
        lambda: writer.end_episode(stream=name),
        lambda: writer.extend(x=np.arange(1), stream=[name]),
        lambda: table.writer(name),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
    writer.flush()
    assert len(table) == 0


def test_writers_of_one_process_share_a_named_stream_and_those_of_a_feeder_do_not(
    make: Making,
) -> None:
    table = make.table(100, FOLLOWED)
    for obs in (0.0, 1.0, 2.0, 3.0):
        writer = make.writer(table, "left")
        writer.append(obs=obs)
        writer.flush()
    found = table.get(range(9))
    linked = dict(zip(found["obs"].tolist(), found["next_obs"].tolist(), strict=True))
    assert linked == ({0.0: 1.0, 1.0: 2.0, 2.0: 3.0} if make.kind.table is ReplayBuffer else {})


# -- views -----------------------------------------------------------------------------------------


# -- what is said ----------------------------------------------------------------------------------


def test_stats_name_the_waiting_streams_and_for_how_long(make: Making) -> None:
    table = make.table(limiter=MinSize(3))
    thread = threading.Thread(target=lambda: table.sample(2, timeout_s=60))
    thread.start()
    until(lambda: bool(table.stats().waiting))
    (first,) = table.stats().waiting
    assert (first.what, first.waited_s >= 0.0) == ("sample", True)
    until(lambda: table.stats().waiting[0].waited_s > first.waited_s)
    writer = make.writer(table)
    writer.extend(steps(3))
    writer.flush()
    thread.join(60)
    assert table.stats().waiting == ()
