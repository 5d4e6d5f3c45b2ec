"""Prioritized replay: importance weights, new priorities from TD errors, an exponent that grows."""

from __future__ import annotations

import numpy as np
import torch

from async_loader import Applied, AsyncDataLoader, Linear, Prioritized, ReplayBuffer


def main() -> None:
    sampler = Prioritized(alpha=0.6, beta=Linear(0.4, 1.0, draws=1_000), new_priority="max_ever")
    with ReplayBuffer(
        1_000, {"obs": ((4,), "float32"), "reward": "float32"}, sampler=sampler, seed=0
    ) as buffer:
        buffer.extend(obs=np.random.default_rng(0).random((500, 4)), reward=np.ones(500))
        network = torch.nn.Linear(4, 1)
        with AsyncDataLoader(buffer, 32, seed=0, timeout_s=60) as loader:
            for _ in range(10):
                batch = next(loader)
                error = network(batch["obs"]) - batch["reward"][:, None]  # [32, 1]
                loss = (batch["weight"] * error[:, 0] ** 2).mean()
                loss.backward()
                applied: Applied = loader.update_priorities(batch["index"], error.detach().abs())
                assert applied.applied == 32


if __name__ == "__main__":
    main()
