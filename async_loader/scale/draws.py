"""How the draws of one batch are spread over shards, and what weighs its rows: arithmetic over
live totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Unsupported
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.wire import TotalsReply
from async_loader.replay.samplers import Fifo, Prioritized, Uniform
from async_loader.replay.samplers.priority_rules import schedule

AGE, WEIGHTED_AGE = 64, 16
"""Batches after which rows that were drawn ahead are old: twice those that a single feeder may have
ahead. Fewer where rows have weights, which are those of the moment of the draw."""
LEAST_AHEAD = 4
"""Chunks that a shard draws ahead: fewer let a learner wait."""
_TOGETHER = 16
"""Batches whose counts are drawn together: one call costs about as much as sixteen."""
Counts = npt.NDArray[np.int64]


class Draws:
    """How a table's sampler draws, over several shards with the same settings.

    Parameters
    ----------
    said : dict | None
        The sampler, as in a configuration; ``None``: of a class that those do not know.
    learners : int
        That draw batches: a schedule of beta counts the draws of all.
    leased : bool
        Whether the tables give each item once.

    Attributes
    ----------
    in_turn : bool
        Shards give what they have, as it comes; else each in proportion to its total.
    shuffled : bool
        Whether the order of a shard's rows says something of them.
    most_age : int
        See shard_rows.py, NOTE [age of rows].

    Raises
    ------
    Unsupported
        For samplers whose draws from several shards are not those from one table.
    """

    def __init__(
        self, said: dict[str, Any] | None, learners: int = 1, leased: bool = False
    ) -> None:
        sampler = None if said is None else sampler_from(said)
        self._learners, self._batches = learners, 0
        self._weights: list[float] = []
        self._ready: list[Counts] = []  # of the next batches, while the weights stay
        self.in_turn = isinstance(sampler, Fifo)
        self.shuffled, self.most_age = False, AGE
        self._sampler: Prioritized | None = None
        if isinstance(sampler, Prioritized):
            self._sampler, self._beta = sampler, schedule("beta", sampler.beta)
            self.shuffled, self.most_age = sampler.stratified, WEIGHTED_AGE
        elif not (self.in_turn or (isinstance(sampler, Uniform) and sampler.repeats)):
            raise Unsupported(
                f"the sampler of this table is {sampler!r}, and the source of a cluster draws by "
                "Uniform(), Prioritized or Fifo: give one of them, or use client.shard(name)"
            )
        self.in_turn |= leased

    def counts(
        self, rng: np.random.Generator, rows: int, totals: Sequence[TotalsReply]
    ) -> Counts | None:
        """Return how many rows each shard gives; ``None`` if there is nothing to draw from."""
        masses = [one.mass or 0.0 for one in totals]
        by_mass = self._sampler is not None and sum(masses) > 0
        weights = masses if by_mass else [float(one.items) for one in totals]
        if not sum(weights) > 0:
            return None
        if weights != self._weights or not self._ready:
            self._weights = weights
            self._ready = rows_of_each(rng, rows, weights, by_mass and self.shuffled, _TOGETHER)
        return self._ready.pop()

    def weigh(self, mass: npt.NDArray[np.float32], totals: Sequence[TotalsReply]) -> None:
        """Write the weights of the rows of one batch over their masses.

        ``(N * P(i)) ** -beta``, normalised, with N and P over all shards (Schaul et al. 2016,
        section 3.4).
        """
        if self._sampler is None:
            return
        beta = self._beta.at(self._batches)
        self._batches += self._learners
        whole = sum(one.mass or 0.0 for one in totals)
        if not whole > 0 or not mass.size:
            mass[...] = 1.0
            return
        drawn: Any = mass.astype(np.float64)
        there = drawn > 0
        base = float(drawn[there].min()) if there.any() else 1.0
        least = [one.least for one in totals if one.least is not None]
        if self._sampler.normalize == "buffer" and least:
            base = min(base, *least)
        elif self._sampler.normalize == "none":
            base = whole / max(1, sum(one.items for one in totals))
        drawn[~there] = base
        mass[...] = (base / drawn) ** beta


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
