"""A table behind a loader: views, weights and ids arrive as they were drawn, with and without
worker processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, Field, Prioritized, ReplayBuffer, Transitions

SCHEMA = {
    "obs": Field((20, 60), np.uint8, stack=3, next="next_obs"),
    "reward": np.float32,
    "n": np.int64,
    "terminated": np.bool_,
}


def episodes(buffer: ReplayBuffer, count: int) -> None:
    """Steps of episodes of ten; the number of a step is in every pixel and in its reward."""
    for n in range(count):
        ends = n % 10 == 9
        final = np.full((20, 60), 255, np.uint8) if ends else None
        buffer.add(
            obs=np.full((20, 60), n % 250, np.uint8),
            reward=float(n),
            n=n,
            terminated=ends,
            final_obs=final,
        )


def check(batch: dict[str, Any], n_step: int) -> None:
    for n, obs, after, reward, discount in zip(
        batch["n"].tolist(),
        batch["obs"],
        batch["next_obs"],
        batch["reward"].tolist(),
        batch["discount"].tolist(),
        strict=True,
    ):
        first = n // 10 * 10
        shown = [max(first, k) % 250 for k in (n - 2, n - 1, n)]
        assert [int(frame[0, 0]) for frame in obs] == shown
        assert all((frame == frame[0, 0]).all() for frame in (*obs, *after))
        taken = min(n_step, first + 10 - n)
        later = [
            255 if k == first + 10 else max(first, k) % 250
            for k in (n + taken - 2, n + taken - 1, n + taken)
        ]
        assert [int(frame[0, 0]) for frame in after] == later
        assert reward == sum(0.5**k * (n + k) for k in range(taken))
        assert discount == (0.0 if n + taken == first + 10 else 0.5**taken)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_stacks_returns_and_weights_arrive_whole(workers: int, method: str | None) -> None:
    buffer = ReplayBuffer(500, SCHEMA, sampler=Prioritized(alpha=1.0, beta=1.0, eps=0.0), seed=0)
    episodes(buffer, 700)
    live = np.arange(200, 1000)
    buffer.update_priorities(live, 1.0 + live % 7)
    source = buffer.source(view=Transitions(n_steps=4, gamma=0.5))
    with AsyncDataLoader(
        source, 32, num_workers=workers, multiprocessing_context=method, timeout_s=60, chunk_size=8
    ) as loader:
        for _ in range(12):
            batch = next(loader)
            check(batch, 4)
            weight, index = batch["weight"], batch["index"]
            assert (weight.dtype, index.dtype, weight.max().item()) == (
                torch.float32,
                torch.int64,
                1.0,
            )
            relative = weight * (1.0 + index % 7)  # weights are inverse to priorities
            assert torch.allclose(relative, relative[0].expand(32), rtol=1e-5)
            applied = loader.update_priorities(index, 1.0 + index % 7)
            assert (applied.applied, applied.stale) == (32, 0)
