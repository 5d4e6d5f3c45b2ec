"""An offline dataset as columns: random batches without end, or one epoch after the other."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch

from async_loader import AsyncDataLoader, DataLoader


def main() -> None:
    columns = {
        "obs": np.random.default_rng(0).random((1_000, 4)).astype(np.float32),
        "action": np.zeros(1_000, np.int64),
    }
    with AsyncDataLoader(columns, 64, seed=0, timeout_s=60) as endless:
        batch = next(endless)
        assert batch["obs"].shape == (64, 4)
    with DataLoader(columns, 64, shuffle=True, last_batch="drop", seed=0) as epochs:
        for _ in range(2):
            assert sum(len(batch["action"]) for batch in epochs) == 960
    with DataLoader((np.ones((1_000, 4)), torch.zeros(1_000)), 64, last_batch="drop") as pairs:
        for obs, goal in pairs:
            assert assert_type(obs, torch.Tensor).shape == (64, 4)
            assert assert_type(goal, torch.Tensor).shape == (64,)
    loaded: Any = (columns["obs"],)  # of a library without types
    for batch in DataLoader(loaded, 500):
        assert assert_type(batch, Any)[0].shape == (500, 4)


if __name__ == "__main__":
    main()
