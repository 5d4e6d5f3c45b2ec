"""Groups of ragged members, and the timing of their steps. Needs numpy only."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SIZE = 8
LEAST = 5
"""Turns that are measured at least."""


class Work:
    """Members of some fields.

    Parameters
    ----------
    members : int
    fields : mapping of str to dtype
    tokens : int
        Of a member; with ``ragged`` from half of it to one and a half.
    """

    def __init__(
        self, members: int, fields: Mapping[str, str], tokens: int, ragged: bool = False
    ) -> None:
        rng = np.random.default_rng(0)
        self.members, self.groups = members, -(-members // SIZE)
        lengths = np.full(members, tokens)
        if ragged:
            spread = rng.integers(-tokens // 2, tokens // 2, members // 2)
            lengths += np.concatenate([spread, -spread])
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.values = {name: rng.integers(0, 1000, self.offsets[-1]).astype(dtype)
                       for name, dtype in fields.items()}  # fmt: skip
        self.fields = dict(fields)

    def column(self, name: str) -> list[np.ndarray]:
        """Return the values of each member."""
        return np.split(self.values[name], self.offsets[1:-1])

    def check(self, batch: Mapping[str, Any]) -> None:
        """Raise AssertionError for a batch that does not hold what was put, in order."""
        for name, values in self.values.items():
            if not np.array_equal(np.asarray(batch[name]).reshape(-1), values):
                raise AssertionError(f"field {name} has other values than were put")


def timed(seconds: float, turn: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Return the medians of what turns say, in milliseconds; the first two are warm-up."""
    said: list[Mapping[str, float]] = []
    for _ in range(2):
        turn()
    end = time.perf_counter() + seconds
    while len(said) < LEAST or time.perf_counter() < end:
        said.append(turn())
    return {name: float(np.median([one[name] for one in said])) * 1e3 for name in said[0]}
