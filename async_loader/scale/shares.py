"""How many rows of a batch each shard gives: arithmetic over live totals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LEAST_AHEAD = 4
"""Chunks that a shard draws ahead: fewer let a learner wait."""
Counts = npt.NDArray[np.int64]


def rows_of_each(
    rng: np.random.Generator, rows: int, totals: Sequence[float], stratified: bool, batches: int
) -> list[Counts]:
    """Return how many of ``rows`` draws fall into each shard, each in proportion to its total.

    For each of some batches.

    Independent draws make a multinomial; stratified ones have one point in each of ``rows`` equal
    parts of the whole, as `Prioritized` has.

    Parameters
    ----------
    totals : sequence of float
        Items, or sums of masses; at least one is above 0.
    """
    weights = np.asarray(totals, np.float64)
    shares = weights / weights.sum()
    if not stratified:
        return list(rng.multinomial(rows, shares, batches).astype(np.int64))
    points = (np.arange(rows) + rng.random((batches, rows))) / rows
    shard = np.searchsorted(np.cumsum(shares), points, side="right")
    last = int(np.flatnonzero(weights)[-1])  # the sum of shares may be a little less than 1
    return [
        np.bincount(np.minimum(one, last), minlength=len(weights)).astype(np.int64) for one in shard
    ]


def chunks_of(batch_size: int, shards: int, most_age: int) -> tuple[int, int]:
    """Return how many rows to ask a shard for at a time, and how many such chunks it may be ahead.

    All that a shard with an average share has drawn ahead is used within half of ``most_age``
    batches. A chunk is as large as a batch where four of them are, and smaller otherwise.
    """
    ahead = max(LEAST_AHEAD, most_age // (2 * shards))
    return max(1, min(batch_size, most_age * batch_size // (2 * ahead * shards))), ahead
