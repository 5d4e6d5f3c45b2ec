"""Counters, the stage that is the bottleneck, and what is printed of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from async_loader import AsyncDataLoader
from async_loader.feeder.client.stats import ClientStats
from async_loader.stats import Meter, StageStats, bottleneck


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_meter_splits_its_time_into_work_and_waiting():
    clock = Clock()
    meter = Meter(clock)
    for seconds, turn in [(1, meter.work), (2, meter.wait), (4, meter.work), (8, meter.wait)]:
        clock.now += seconds
        turn()
    stats = meter.snapshot(depth=3)
    assert (stats.wait_s, stats.busy_s, stats.waits, stats.depth) == (5.0, 10.0, 2, 3)
    assert stats.busy_fraction == pytest.approx(2 / 3)


def share(busy: float) -> StageStats:
    return StageStats(1, 1, busy, 1.0 - busy, 0)


@pytest.mark.parametrize(
    ("source", "workers", "copy", "learner", "one_thread", "name"),
    [
        (0.9, 0.1, 0.0, 0.2, False, "source"),
        (0.1, 0.95, 0.0, 0.5, False, "workers"),
        (0.1, 0.2, 0.8, 0.5, False, "copy"),
        (0.1, 0.2, 0.3, 0.7, False, "learner"),
        (0.3, 0.4, 0.0, 0.6, False, "learner"),
        # the two stages alternate in one thread, 0.7 of the time
        (0.3, 0.4, 0.0, 0.6, True, "workers"),
        (0.4, 0.3, 0.0, 0.6, True, "source"),
        (0.2, 0.3, 0.0, 0.6, True, "learner"),
    ],
)
def test_the_bottleneck_is_the_stage_that_is_busy_most(
    source, workers, copy, learner, one_thread, name
):
    assert (
        bottleneck(
            share(source), share(workers), share(copy), share(learner), one_thread=one_thread
        )
        == name
    )


def test_a_loader_prints_its_stages_and_the_slowest() -> None:
    columns = {"x": np.arange(64, dtype=np.float32)}
    with AsyncDataLoader(columns, 8, "cpu") as loader:
        next(loader)
        stats = loader.stats()
    lines = str(stats).splitlines()
    assert lines[0].startswith(f"the others wait for: {stats.bottleneck}; drawn by the ")
    assert [line.split()[0] for line in lines[1:5]] == ["source", "workers", "copy", "learner"]
    assert " busy, " in lines[4]
    assert "skipped" not in str(stats)
    assert "3 skipped" in str(dataclasses.replace(stats, skipped=3))


def client_stats(**changed: Any) -> ClientStats:
    counts = {field.name: 0 for field in dataclasses.fields(ClientStats) if field.type != "bool"}
    return ClientStats(
        **{**counts, "connected": True, "last_heard_s": 0.5, "sessions": 1, **changed}
    )


def test_a_client_prints_what_it_did() -> None:
    assert str(client_stats()) == "connected, heard 0.5 s ago"
    said = str(
        client_stats(
            rows_added=10, rows_acked=9, rows_lost=1, bytes_sent=2048, batches=5, sessions=2
        )
    )
    assert said.splitlines() == [
        "connected, heard 0.5 s ago, session 2",
        "10 rows added, 9 acknowledged, 1 lost with the feeder; 2.0 KiB sent, 0 B kept",
        "5 batches received",
    ]
    assert str(client_stats(connected=False, last_heard_s=None)) == "not connected"
