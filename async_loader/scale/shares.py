"""How many rows of a batch each shard gives: arithmetic over live totals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def rows_of_each(
    rng: np.random.Generator, rows: int, totals: Sequence[float], stratified: bool
) -> Counts:
    """Return how many of ``rows`` draws fall into each shard, each in proportion to its total.

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
        return rng.multinomial(rows, shares).astype(np.int64)
    bounds = np.cumsum(shares)
    points = (np.arange(rows) + rng.random(rows)) / rows
    shard = np.searchsorted(bounds, points, side="right")
    last = int(np.flatnonzero(weights)[-1])  # the sum of shares may be a little less than 1
    return np.bincount(np.minimum(shard, last), minlength=len(weights)).astype(np.int64)


def chunk_rows(batch_size: int, shards: int, ahead: int, most_age: int) -> int:
    """Return how many rows to ask a shard for at a time.

    As large as lets ``ahead`` chunks of a shard with an average share be used within half of
    ``most_age`` batches, and no larger than a batch.
    """
    return max(1, min(batch_size, most_age * batch_size // (2 * max(1, ahead) * shards)))
