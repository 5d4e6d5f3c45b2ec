"""How the draws of one batch are spread over shards: by items, by masses, or in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, Unsupported
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.wire import TotalsReply
from async_loader.replay.samplers import Fifo, Prioritized, Uniform
from async_loader.scale.importance import Importance, Whole
from async_loader.scale.shares import Counts, rows_of_each
from async_loader.scale.source_options import AGE, WEIGHTED_AGE

_AT_ONCE = 16
"""Batches whose counts are drawn together: one call costs about as much as sixteen."""


class Rule:
    """How a table's sampler draws, over several shards with the same settings.

    Parameters
    ----------
    said : dict | None
        The sampler, as in a configuration; ``None``: of a class that those do not know.
    learners : int
        That draw batches.

    Attributes
    ----------
    in_turn : bool
        Shards give what they have, as it comes; else each in proportion to its total.
    importance : Importance | None
        What weighs the rows.
    shuffled : bool
        Whether the order of a shard's rows says something of them.
    most_age : int
        See shard_rows.py, NOTE [age of rows].

    Raises
    ------
    Unsupported
        For samplers whose draws from several shards are not those from one table.
    """

    def __init__(self, said: dict[str, Any] | None, learners: int) -> None:
        sampler = None if said is None else sampler_from(said)
        self.said = said
        self.importance: Importance | None = None
        self._weights: list[float] = []
        self._ready: list[Counts] = []  # of the next batches, while the weights stay
        self.in_turn, self.shuffled, self.most_age = False, False, AGE
        if isinstance(sampler, Prioritized):
            self.importance = Importance(sampler, learners)
            self.shuffled, self.most_age = sampler.stratified, WEIGHTED_AGE
        elif isinstance(sampler, Fifo):
            self.in_turn = True
        elif not isinstance(sampler, Uniform) or not sampler.repeats:
            raise Unsupported(
                f"the sampler of this table is {sampler!r}, and the source of a cluster draws by "
                "Uniform(), Prioritized or Fifo: give one of them, or use client.shard(name)"
            )

    def agree(self, said: dict[str, Any] | None, shard: str) -> None:
        """Raise ConfigError unless a shard has the same sampler."""
        if said != self.said:
            raise ConfigError(
                f"{shard} samples by {said}, and another shard by {self.said}: give all the same"
            )

    def counts(
        self, rng: np.random.Generator, rows: int, totals: Sequence[TotalsReply]
    ) -> Counts | None:
        """Return how many rows each shard gives; ``None`` if there is nothing to draw from."""
        masses = [one.mass or 0.0 for one in totals]
        by_mass = self.importance is not None and sum(masses) > 0
        weights = masses if by_mass else [float(one.items) for one in totals]
        if not sum(weights) > 0:
            return None
        if weights != self._weights or not self._ready:
            self._weights = weights
            self._ready = rows_of_each(rng, rows, weights, by_mass and self.shuffled, _AT_ONCE)
        return self._ready.pop()


def whole_of(totals: Sequence[TotalsReply]) -> Whole:
    """Return the items of all shards together."""
    least = [one.least for one in totals if one.least is not None]
    return Whole(
        sum(one.items for one in totals),
        sum(one.mass or 0.0 for one in totals),
        min(least) if least else None,
    )
