"""What is stored, the same for every contender: transitions of small vectors and of stacked frames.

Needs numpy only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]

BATCH = 256
SEED = 0
EPISODE = 900
"""Steps of an episode; each ends terminated."""

STACK = 4
FRAME = (84, 84)
ATARI_STEPS = 20_000
SMALL = {
    "obs": ((17,), np.float32),
    "action": ((6,), np.float32),
    "reward": ((), np.float32),
    "next_obs": ((17,), np.float32),
    "terminated": ((), np.bool_),
}
ATARI = {
    "obs": ((STACK, *FRAME), np.uint8),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "next_obs": ((STACK, *FRAME), np.uint8),
    "terminated": ((), np.bool_),
}
_DISTINCT = 1000


@dataclass(frozen=True)
class Small:
    """Transitions of 17 + 6 + 1 + 17 floats and a flag: an episode's observations,
    and each one's successor.
    """

    rows: int
    fields = SMALL

    def chunks(self, size: int = 100 * EPISODE) -> Iterator[Columns]:
        rng = np.random.default_rng(SEED)
        for start in range(0, self.rows, size):
            n = min(size, self.rows - start)
            obs = rng.standard_normal((n + 1, 17), dtype=np.float32)
            yield {
                "obs": obs[:-1],
                "action": rng.standard_normal((n, 6), dtype=np.float32),
                "reward": rng.standard_normal(n, dtype=np.float32),
                "next_obs": obs[1:],
                "terminated": ends(start, n),
            }

    def episodes(self) -> Iterator[Columns]:
        return self.chunks(EPISODE)

    def vectors(self, width: int, count: int) -> list[Columns]:
        """Return `count` steps of ``width`` environments side by side."""
        rows = next(self.chunks(width * count))
        return [
            {name: column[i * width : (i + 1) * width] for name, column in rows.items()}
            for i in range(count)
        ]


@dataclass(frozen=True)
class Atari:
    """Transitions of two stacks of four frames.

    Each frame is noise and begins with its own number.
    """

    rows: int = ATARI_STEPS
    fields = ATARI

    def chunks(self, size: int = EPISODE) -> Iterator[Columns]:
        """Yield the stacks of an episode, written out."""
        for start, n in self._spans(size):
            frames = numbered(start, n + STACK)
            stacks = np.moveaxis(
                np.lib.stride_tricks.sliding_window_view(frames, STACK, axis=0), -1, 1
            )
            yield {**self._rest(start, n), "obs": stacks[:-1], "next_obs": stacks[1:]}

    episodes = chunks

    def frames(self) -> Iterator[Columns]:
        """Yield the same episodes, each step with its newest frame only."""
        for start, n in self._spans(EPISODE):
            yield {**self._rest(start, n), "obs": numbered(start + STACK - 1, n)}

    def _spans(self, size: int) -> Iterator[tuple[int, int]]:
        return ((start, min(size, self.rows - start)) for start in range(0, self.rows, size))

    def _rest(self, start: int, n: int) -> Columns:
        return {
            "action": np.arange(n) % 18,
            "reward": np.ones(n, np.float32),
            "terminated": ends(start, n),
        }


def ends(start: int, n: int) -> np.ndarray:
    """Return the ends of episodes in steps ``start`` to ``start + n - 1``."""
    return np.arange(start + 1, start + n + 1) % EPISODE == 0


_noise: list[np.ndarray] = []


def numbered(start: int, n: int) -> np.ndarray:
    """Return frames ``start`` to ``start + n - 1``."""
    if not _noise:
        _noise.append(
            np.random.default_rng(SEED).integers(0, 256, (_DISTINCT, *FRAME), dtype=np.uint8)
        )
    numbers = np.arange(start, start + n)
    frames = _noise[0][numbers % _DISTINCT]
    frames[:, 0, :4] = numbers.astype("<u4")[:, None].view(np.uint8)
    return frames


def check_stacks(obs: Any, next_obs: Any, terminated: Any) -> None:
    """Check that stacks [batch, 4, 84, 84] are of frames in order, and the next is one frame on:
    no timing is of wrong data.
    """
    now, after = (
        np.ascontiguousarray(np.asarray(stacks)[:, :, 0, :4]).view("<u4")[..., 0]
        for stacks in (obs, next_obs)
    )
    goes_on = ~np.asarray(terminated).reshape(-1).astype(bool)
    if not np.array_equal(after[goes_on, :-1], now[goes_on, 1:]) or np.any(
        after[goes_on, -1] != now[goes_on, -1] + 1
    ):
        raise AssertionError(
            f"stacks of frames {now[goes_on][0]} are followed by {after[goes_on][0]}"
        )


def check_rows(batch: Any) -> None:
    """Each row's next observation is not its own, and its fields vary: a table that was filled,
    and rows that were drawn.
    """
    obs, next_obs = (np.asarray(batch[name]) for name in ("obs", "next_obs"))
    if np.array_equal(obs, next_obs) or len(np.unique(obs[:, 0])) < len(obs) // 2:
        raise AssertionError("a batch of rows that are all alike")
