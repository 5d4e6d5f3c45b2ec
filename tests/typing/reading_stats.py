"""What a table, a loader and a feeder say of themselves."""

from __future__ import annotations

import numpy as np

from async_loader import AsyncDataLoader, ReplayBuffer, Table, connect
from async_loader.stats import LoaderStats


def occupancy(table: Table) -> float:
    return len(table) / (table.capacity or 1)


def bottleneck(stats: LoaderStats) -> str:
    return (
        f"{stats.bottleneck}: the learner waited {stats.learner.wait_s:.3f} s for "
        f"{stats.learner.batches} batches"
    )


def main() -> None:
    with ReplayBuffer(100, {"x": "int64"}, seed=0) as buffer:
        buffer.extend(x=np.arange(50))
        assert occupancy(buffer) == 0.5
        with AsyncDataLoader(buffer, 8, timeout_s=60) as loader:
            next(loader)
            assert "batches" in bottleneck(loader.stats())
        stats = buffer.stats()
        assert stats.inserted == 50
        assert stats.waiting == ()
    with connect("embedded", tables={"replay": 100}) as client:
        assert client.stats().sessions == 1
        assert "replay" in client.status(timeout_s=30)["tables"]


if __name__ == "__main__":
    main()
