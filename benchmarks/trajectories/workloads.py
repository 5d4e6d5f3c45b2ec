"""What is stored, the same for every contender: episodes of small steps, and of frames.

Needs numpy only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]

SEED = 0
FRAME = (84, 84)
EPISODE = 1000
"""Steps of an episode; each ends terminated."""
_DISTINCT = 1000


@dataclass(frozen=True)
class Steps:
    """Steps of ``rows // EPISODE`` episodes, and batches of ``batch`` sequences of ``length``."""

    rows: int
    batch: int
    length: int
    frames: bool = False

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        obs = (FRAME, np.uint8) if self.frames else ((17,), np.float32)
        action = ((), np.int64) if self.frames else ((6,), np.float32)
        return {
            "obs": obs, "action": action, "reward": ((), np.float32), "terminated": ((), np.bool_)
        }  # fmt: skip

    def episodes(self) -> Iterator[Columns]:
        """Yield the episodes one by one. The reward of a step is its number."""
        rng = np.random.default_rng(SEED)
        noise = rng.integers(0, 256, (_DISTINCT, *FRAME), dtype=np.uint8) if self.frames else None
        for start in range(0, self.rows, EPISODE):
            n = min(EPISODE, self.rows - start)
            yield {
                "obs": rng.standard_normal((n, 17), dtype=np.float32)
                if noise is None
                else noise[np.arange(start, start + n) % _DISTINCT],
                "action": rng.standard_normal((n, 6), dtype=np.float32)
                if noise is None
                else np.arange(n) % 18,
                "reward": np.arange(start, start + n, dtype=np.float32),
                "terminated": np.arange(n) == n - 1,
            }

    def step(self) -> Columns:
        """Return one more step, ``[1, ...]``."""
        return {name: column[:1] for name, column in next(self.episodes()).items()}


def check(work: Steps, reward: Any, *, one_episode: bool = True) -> None:
    """Check that rewards ``[batch, length]`` are of steps in a row: no timing is of wrong data."""
    numbers = np.asarray(reward).reshape(work.batch, work.length)
    if np.any(np.diff(numbers, axis=1) != 1) or len(np.unique(numbers[:, 0])) < work.batch // 3:
        raise AssertionError(f"sequences that do not go on: {numbers[0]}")
    if one_episode and np.any(numbers[:, 0] // EPISODE != numbers[:, -1] // EPISODE):
        raise AssertionError("sequences of two episodes")
