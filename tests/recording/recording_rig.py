"""Environments that know what a table must hold of them: each writes down its own steps."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from async_loader import ReplayBuffer

Step = tuple[int, int, float, bool, bool, int]
"""Observation, action, reward, terminated, truncated, next observation."""


class Counter(gymnasium.Env[Any, Any]):
    """Episodes of given lengths; an observation is a number that no other step has.

    Parameters
    ----------
    first : int
        The first observation's number.
    lengths : list of int
        Of the episodes, over and over. A negative one is truncated, the others terminate.
    in_place : bool
        Return the same array each time, and write into it, as some environments do.
    """

    observation_space = spaces.Box(-(2**40), 2**40, (2,), np.int64)
    action_space = spaces.Discrete(1 << 20)

    def __init__(
        self, first: int = 0, lengths: list[int] | None = None, in_place: bool = False
    ) -> None:
        self.number, self.lengths = first, lengths or [3]
        self.in_place = in_place
        self.log: list[Step] = []
        self.episodes: list[list[int]] = []  # the observations of each, with the last
        self._array = np.zeros(2, np.int64)

    def _seen(self) -> np.ndarray:
        self.number += 1
        self.episodes[-1].append(self.number)
        if not self.in_place:
            self._array = np.zeros(2, np.int64)
        self._array[:] = self.number, -self.number
        return self._array

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episodes.append([])
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, length = self.number, self.lengths[len(self.episodes) % len(self.lengths)]
        obs = self._seen()
        ends = len(self.episodes[-1]) > abs(length)
        over, cut = ends and length > 0, ends and length < 0
        self.log.append((before, int(action), float(before % 7), over, cut, self.number))
        return obs, float(before % 7), over, cut, {}


def made(*games: Counter) -> list[Step]:
    """The steps of environments, with those truncated after which they were reset or closed."""
    found = []
    for game in games:
        last = {episode[-1] for episode in game.episodes}
        for *step, terminated, truncated, after in game.log:
            found.append(
                (*step, terminated, truncated or (after in last and not terminated), after)
            )
    return sorted(found)


def held(table: Any, first: int = 0, many: int = 5_000) -> list[Step]:
    """The steps of a table, in the order of their observations."""
    found = table.get(np.arange(first, first + many))

    def newest(values: np.ndarray) -> np.ndarray:
        return values[..., 0].reshape(len(values), -1)[:, -1]

    columns = (
        newest(found["obs"]),
        found["action"],
        found["reward"],
        found["terminated"],
        found["truncated"],
        newest(found["next_obs"]),
    )
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def empty(**more: Any) -> ReplayBuffer:
    """A table without a schema."""
    return ReplayBuffer(5_000, seed=0, **more)
