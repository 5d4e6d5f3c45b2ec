"""An offline dataset as columns: random batches without end, or one epoch after the other."""

from __future__ import annotations

import numpy as np

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


if __name__ == "__main__":
    main()
