"""A run that goes on where another one ended: the table, and the place in an epoch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from async_loader import DataLoader, ReplayBuffer


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    with ReplayBuffer(100, {"x": "int64"}, seed=0) as buffer:
        buffer.extend(x=np.arange(60))
        report = buffer.save(folder)
        assert report.number == 1
    with ReplayBuffer.from_checkpoint(folder, seed=1) as again:
        assert len(again) == 60
    with ReplayBuffer(100, {"x": "int64"}) as running:
        running.load(folder)
        assert sorted(running.sample(8)["x"].tolist())[-1] < 60

    items = [{"x": n} for n in range(12)]
    with DataLoader(items, 3, shuffle=True, seed=0) as loader:
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        rest = [batch["x"].tolist() for batch in epoch]
    with DataLoader(items, 3, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert [batch["x"].tolist() for batch in loader] == rest


if __name__ == "__main__":
    main()
