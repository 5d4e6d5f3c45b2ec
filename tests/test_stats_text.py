"""Printed stats: a few lines that say what there is to say, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from async_loader import AsyncDataLoader
from async_loader.feeder.client.stats import ClientStats


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
