"""Random numbers, generated ahead. The global generators are never used."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.replay.array_types import Floats

_AHEAD = 16_384


class RandomNumbers:
    """Uniform numbers in [0, 1), generated many at a time.

    The generator releases the GIL, and beside a learner that wants it, getting it back takes up to
    5 ms. Thread rule: that of its sampler. Cost: 1 us, and 60 us every 16,384 numbers.

    Parameters
    ----------
    seed : SeedSequence
    """

    __slots__ = ("_ahead", "_made", "_next", "_rng", "_seed")

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._seed = seed
        self._rng: np.random.Generator | None = None
        self._ahead: Floats = np.empty(0)
        self._next = self._made = 0

    def ahead(self, count: int) -> Floats:
        """Return the next numbers, ``count`` or more. Read-only; see `drop`."""
        if self._next + count > len(self._ahead):
            if self._rng is None:
                self._rng = np.random.default_rng(self._seed)
            made = self._rng.random(max(count, _AHEAD))
            self._made += len(made)
            self._ahead, self._next = np.concatenate((self._ahead[self._next :], made)), 0
        return self._ahead[self._next :]

    def drop(self, count: int) -> None:
        """Mark ``count`` of the numbers that are `ahead` as used."""
        self._next += count

    def take(self, count: int) -> Floats:
        """Return the next ``count`` numbers. Read-only."""
        start = self._next
        if start + count > len(self._ahead):
            self.ahead(count)
            start = self._next
        self._next = start + count
        return self._ahead[start : start + count]

    def state(self) -> dict[str, Any]:
        """Return the seed, and how many numbers were used."""
        return {
            "seed": seeds_json(self._seed),
            "used": self._made - (len(self._ahead) - self._next),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self._seed, self._made = seeds_of(state["seed"]), state["used"]
        self._rng = np.random.default_rng(self._seed)
        self._rng.bit_generator.advance(self._made)  # type: ignore[attr-defined]
        self._ahead, self._next = np.empty(0), 0


def seeds_json(seeds: np.random.SeedSequence) -> dict[str, Any]:
    """Convert a seed sequence to JSON, with the number of seeds made of it."""
    entropy: Any = seeds.entropy
    return {
        "entropy": [int(one) for one in entropy] if np.iterable(entropy) else int(entropy),
        "spawn_key": [int(one) for one in seeds.spawn_key],
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def seeds_of(saved: dict[str, Any], children: int | None = None) -> np.random.SeedSequence:
    """Make the seed sequence of `seeds_json`, with ``children`` seeds made of it."""
    made = saved["n_children_spawned"] if children is None else children
    return np.random.SeedSequence(
        saved["entropy"],
        spawn_key=tuple(saved["spawn_key"]),
        pool_size=saved["pool_size"],
        n_children_spawned=made,
    )
