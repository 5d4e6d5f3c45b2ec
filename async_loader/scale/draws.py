"""How the draws of one batch are spread over shards, and what weighs its rows: arithmetic over
live totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError, Unsupported
from async_loader.feeder.plain_values import sampler_from
from async_loader.feeder.wire import TotalsReply
from async_loader.replay.samplers import Fifo, Prioritized, Uniform
from async_loader.replay.samplers.priority_rules import schedule
from async_loader.schema import Field, Schema
from async_loader.shm.array_pool import ArrayPool
from async_loader.sources.mixture_rows import Array, add_source

_LARGE = 64 << 10
"""Bytes of an array from which on its memory comes from a pool."""


class Part(NamedTuple):
    """Rows that follow each other in a message of a shard.

    Attributes
    ----------
    arrays : list of arrays [rows, ...]
        Of the whole message, one for each field of the schema.
    order : int64 array [rows] | None
        In which its rows are taken; ``None``: as they lie.
    start, rows : int
    asked : int
        Number of the batch before which it was asked for.
    server : int
        Of the shard's servers, the one that had the rows.
    """

    arrays: list[Array]
    order: npt.NDArray[np.int64] | None
    start: int
    rows: int
    asked: int
    server: int


class BatchMaker:
    """Copies rows of shards into batches. Thread rule: that of `Source.plan`.

    Attributes
    ----------
    schema : Schema | None
        Of the rows of all shards; ``None`` before the first ones.
    """

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._of = ""
        self._arrays = ArrayPool()
        self._ids: list[int] = []
        self._weight: int | None = None

    def arrays_of(
        self, batch: Mapping[str, Any], schema: Schema, number: int, shard: str
    ) -> list[Array]:
        """Return the arrays of a shard's message, with the shard's number in their ids.

        Raises
        ------
        SchemaError
            Names a field that differs from those of the other shards.
        """
        if schema is not self.schema:
            self._agree(schema, shard)
        arrays = list(tree.leaves(batch, schema.structure))
        for place in self._ids:
            arrays[place] = ids = arrays[place].copy()
            add_source(ids, number)
        return arrays

    def _agree(self, schema: Schema, shard: str) -> None:
        """Take the schema of the first shard, and compare those of others."""
        if self.schema is None:
            names = [field.name for field in schema.fields]
            self.schema, self._of = schema, shard
            self._ids = [names.index("index")]
            if {"mask", "is_first", "step_index"} <= set(names):  # of sequences
                self._ids.append(names.index("step_index"))
            self._weight = names.index("weight") if "weight" in names else None
            return
        ours, theirs = _fields(self.schema), _fields(schema)
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                raise SchemaError(
                    f"field {name!r} is {ours.get(name, 'missing')} in {self._of} and "
                    f"{theirs.get(name, 'missing')} in {shard}: give all shards the same tables"
                )
        if [*ours] != [*theirs]:
            raise SchemaError(f"{self._of} and {shard} have the same fields in another order")

    def batch(self, parts: Sequence[Part], rows: int) -> list[Array]:
        """Return new arrays with the rows of these parts, one for each field."""
        assert self.schema is not None
        arrays = [self._empty(field, rows) for field in self.schema.fields]
        at = 0
        for part in parts:
            into, taken = slice(at, at + part.rows), slice(part.start, part.start + part.rows)
            at += part.rows
            for array, source in zip(arrays, part.arrays, strict=True):
                if part.order is None:
                    array[into] = source[taken]
                else:
                    np.take(source, part.order[taken], axis=0, out=array[into], mode="clip")
        return arrays

    def weight_of(self, arrays: Sequence[Array]) -> Array | None:
        """Return the weights of a batch, if its rows have any."""
        return None if self._weight is None else arrays[self._weight]

    def nested(self, arrays: Sequence[Array]) -> Mapping[str, Any]:
        """Return a batch nested as steps are."""
        assert self.schema is not None
        made: Mapping[str, Any] = tree.rebuild_batch(self.schema.structure, arrays)
        return made

    def _empty(self, field: Field, rows: int) -> Array:
        if rows * field.nbytes >= _LARGE:
            return self._arrays.array((rows, *field.shape), field.dtype)
        return np.empty((rows, *field.shape), field.dtype)


def _fields(schema: Schema) -> dict[str, str]:
    return {field.name: f"{field.dtype}{list(field.shape)}" for field in schema.fields}


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

    def __init__(self, said: dict[str, Any] | None, learners: int) -> None:
        sampler = None if said is None else sampler_from(said)
        self._said, self._learners, self._batches = said, learners, 0
        self._weights: list[float] = []
        self._ready: list[Counts] = []  # of the next batches, while the weights stay
        self.in_turn, self.shuffled, self.most_age = isinstance(sampler, Fifo), False, AGE
        self._sampler: Prioritized | None = None
        if isinstance(sampler, Prioritized):
            self._sampler, self._beta = sampler, schedule("beta", sampler.beta)
            self.shuffled, self.most_age = sampler.stratified, WEIGHTED_AGE
        elif not (self.in_turn or (isinstance(sampler, Uniform) and sampler.repeats)):
            raise Unsupported(
                f"the sampler of this table is {sampler!r}, and the source of a cluster draws by "
                "Uniform(), Prioritized or Fifo: give one of them, or use client.shard(name)"
            )

    def agree(self, said: dict[str, Any] | None, shard: str) -> None:
        """Raise ConfigError unless a shard has the same sampler."""
        if said != self._said:
            raise ConfigError(
                f"{shard} samples by {said}, and another shard by {self._said}: give all the same"
            )

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
