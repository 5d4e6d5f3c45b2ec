"""How one learner draws: by the table's sampler, its own, or the table's with another seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array, Bools
from async_loader.replay.samplers import Prioritized, Sampler, Uniform
from async_loader.replay.samplers.binding import RandomNumbers, Seeded, innermost, like
from async_loader.replay.samplers.sampler import check_sampler
from async_loader.replay.table.batch_arrays import Target
from async_loader.replay.table.by_id import SharedTable
from async_loader.replay.table.lag_sampler import LagSampler, version_field, weights_of
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.views import Sequences, View
from async_loader.schema import Schema
from async_loader.validation import seed_of, whole


class Totals(NamedTuple):
    """What a learner's batches are drawn from.

    Attributes
    ----------
    items : int
        That can be drawn; 0 while the limiter waits for more.
    mass : float | None
        The sum of what their probabilities are in proportion to; ``None``: all are the same.
    least : float | None
        The least of these, where the sampler knows it.
    """

    items: int
    mass: float | None = None
    least: float | None = None


class SamplerSession:
    """Draws the batches of one learner. Made by `NonblockingTable.drawing`. One thread.

    Parameters
    ----------
    table_state : SharedTable
    view : View | None
    chosen : SourceSampler
        Its own sampler is detached by `close`.
    min_size : int
        Items that its batches wait for.

    Attributes
    ----------
    drawn : int | None
        The number of the next batch, each of which has random numbers of its own; ``None``: they
        follow each other.
    """

    def __init__(
        self,
        table_state: SharedTable,
        view: View | None,
        chosen: SourceSampler,
        min_size: int = 1,
    ) -> None:
        self._table_state = table_state
        self._view, self._chosen, self._min_size = view, chosen, min_size
        self._sampler = chosen.sampler
        self._lag = chosen.own if isinstance(chosen.own, LagSampler) else None
        self._read_plan = self._table_state.read_plan(view, chosen.sampler)
        self._reader: ReplayReader | None = None
        self._goals = self._goal_numbers()
        self.drawn: int | None = None

    @property
    def schema(self) -> Schema:
        """Of a batch's rows, with ``index``, and ``weight`` where the sampler has weights."""
        return self._read_plan.schema

    @property
    def eta(self) -> float | None:
        """The share of the largest error in the priority of a sequence; ``None`` for steps."""
        sequence = self._read_plan.sequence
        return None if sequence is None else sequence.eta

    @property
    def sampler(self) -> Sampler:
        """What chooses the items in the end."""
        return innermost(self._sampler)

    def totals(self) -> Totals:
        """Return how much there is to draw from now."""
        table_state = self._table_state
        with table_state.lock:
            table_state.check_open()
            table = table_state.table
            table_state.catch_up()
            items, limits = table.held_for(self._sampler), table_state.limits
            if limits is not None and limits.inserted - limits.deleted < (
                limits.config.min_size_to_sample
            ):
                items = 0
            if not isinstance(self.sampler, Prioritized) or not items:
                return Totals(items)
            return Totals(items, *self.sampler.totals())

    @property
    def index_place(self) -> int:
        """The position of ``index`` among the fields of `schema`."""
        return [field.name for field in self.schema.fields].index("index")

    @property
    def weights(self) -> str | None:
        """The name of the weights whose newest version bounds what is drawn; ``None``: none do."""
        schema = self._table_state.schema
        return None if self._lag is None or schema is None else weights_of(schema)

    def publish(self, version: int) -> None:
        """Note the newest version of `weights`. See `LagSampler.publish`."""
        assert self._lag is not None
        self._table_state.publish(self._lag.publish, version)

    def too_old(self, columns: Sequence[Array]) -> Bools | None:
        """Return which rows of a batch that came back are too old to be given out again, and count
        them; ``None``: none are.
        """
        if self._lag is None:
            return None
        with self._table_state.lock:
            old = self._lag.too_old(columns[version_field(self.schema)])
        return old if old.any() else None

    def why_not(self, count: int) -> str | None:
        """Say in numbers why ``count`` items cannot be drawn now; ``None`` if they can.

        Raises ConfigError if they never can be.
        """
        table_state = self._table_state
        with table_state.lock:
            table_state.check_open()
            return self._table_state.why_not(self._sampler, count, self._min_size)

    def nothing(self, count: int) -> Exception:
        """Return what `ReplayBuffer.sample` raises for too few items without a limiter."""
        with self._table_state.lock:
            return self._table_state.not_enough(count, self._sampler)

    def most(self, count: int) -> int:
        """Return how many items can be drawn at once now, up to ``count``."""
        table_state = self._table_state
        with table_state.lock:
            drawable = table_state.table.drawable(self._sampler)
            limits = table_state.limits
        most = count if drawable is None else min(count, drawable)
        return most if limits is None else min(most, limits.sampleable())

    def arrays(self, count: int) -> Sequence[Array]:
        """Draw a batch into new arrays ``[count, *shape]``, one for each field of `schema`.

        Call it when `why_not` has returned ``None``.
        """
        return self._table_state.arrays(self._sampler, count, self._view, 0.0)

    def target(self, arrays: Sequence[Array]) -> Target:
        """Wrap the caller's arrays as a target for `fill`.

        One array ``[count, *shape]`` for each field of `schema`, in C order.
        """
        if self._reader is None:
            self._reader = self._table_state.reader(self._read_plan, self._goals)
        return self._reader.target(arrays)

    def _begin(self) -> None:
        """Go to the random numbers of the next batch."""
        if self.drawn is not None:
            for numbers in (self._chosen.numbers(self._sampler), self._goals):
                if numbers is not None:
                    numbers.seek(self.drawn)
            self.drawn += 1

    def _goal_numbers(self) -> RandomNumbers | None:
        """Return what chooses hindsight goals, if the learner has a seed: as `ReplaySource`."""
        seeds = self._chosen.goal_seeds()
        return None if seeds is None else RandomNumbers(seeds)

    def fill(self, target: Target) -> None:
        """Draw a batch into a target of this session: the rows that `arrays` would return.

        Call it when `why_not` has returned ``None``.
        """
        assert self._reader is not None
        self._begin()
        self._table_state.fill(self._reader, self._sampler, target)

    def close(self) -> None:
        """Detach the learner's own sampler from the table."""
        if self._chosen.own is not None:
            self._table_state.let_go_of(self._chosen.own)
            with self._table_state.lock:
                self._table_state.table.let_go()


NewestOf = Callable[[str], int | None]
"""Returns the newest version of weights by their name; ``None``: none were published."""


def nothing_published(weights: str) -> int | None:
    """Say that no weights were published, as a `NewestOf`."""
    return None


class SourceSampler(NamedTuple):
    """What draws for one learner; the sampler that was attached to the table for it, if any."""

    sampler: Any  # a Sampler, or a `Seeded` in front of one
    own: Sampler | None
    words: list[int] | None  # of the learner's seed, if it has one

    def numbers(self, sampler: Any) -> RandomNumbers | None:
        """Return the random numbers of this learner's ``sampler`` alone, if it has any."""
        found = getattr(sampler if self.own is None else innermost(sampler), "_numbers", None)
        return found if isinstance(found, RandomNumbers) and self.words is not None else None

    def goal_seeds(self) -> np.random.SeedSequence | None:
        """Return the seed of the numbers that choose hindsight goals, if the learner has a seed."""
        return None if self.words is None else np.random.SeedSequence(self.words, spawn_key=(0,))


def sampler_for(
    table_state: SharedTable,
    sampler: Sampler | None,
    seed: int | None,
    rank: int,
    world_size: int,
    view: View | None = None,
    max_lag: int | None = None,
    newest_of: NewestOf = nothing_published,
    masses: bool = False,
) -> SourceSampler:
    """Choose the sampler of a learner, and attach its own. See `ReplayBuffer.source`.

    ``masses``: it gives masses in place of weights, see `Seeded`.
    """
    if whole("rank", rank, 0) >= whole("world_size", world_size, 1):
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
    words = None if seed is None else [rank, world_size, seed_of(seed)]
    shared: Any = table_state.sampler
    if max_lag is not None:
        whole("max_lag", max_lag, 0)
        sampler = like(shared) if sampler is None else sampler
    elif sampler is None and words is None and world_size > 1 and type(shared) is Uniform:
        sampler = Uniform()
    if sampler is None:
        shared = Seeded(shared, words, masses) if masses or words is not None else shared
        return SourceSampler(table_state.drawing_sampler(shared, view), None, words)
    check_sampler("sampler", sampler)
    if not table_state.ready:
        what = "a sampler beside the table's" if max_lag is None else "max_lag"
        raise ConfigError(f"{what} needs a table: give a schema, or add a step first")
    with table_state.lock:
        (spawned,) = table_state.seeds.spawn(1)
        entropy = [rank, *spawned.generate_state(4).tolist()] if words is None else words
        seeds = np.random.SeedSequence(entropy)
        shown = table_state.view if view is None else view
        if max_lag is not None:
            sampler = _within_lag(table_state, sampler, shown, max_lag, seeds, newest_of)
        elif isinstance(shown, Sequences):
            sampler = table_state.in_sequences(shown, sampler, seeds)
        else:
            sampler.bind(table_state.table.items, seeds)
        table_state.attach(sampler)
    return SourceSampler(Seeded(sampler, None, masses=True) if masses else sampler, sampler, words)


def _within_lag(
    table_state: SharedTable,
    sampler: Sampler,
    view: View | None,
    max_lag: int,
    seeds: np.random.SeedSequence,
    newest_of: NewestOf,
) -> LagSampler:
    """Have a sampler that is bound to no table draw from the steps of recent policies alone.

    Under the lock.
    """
    if isinstance(view, Sequences):
        raise ConfigError(
            "max_lag and a view of sequences: a sequence may be of several versions, give one of "
            "them"
        )
    schema = table_state.table.storage.layout.schema
    place = version_field(schema)
    return LagSampler(
        sampler,
        max_lag,
        table_state.table.items,
        lambda: table_state.table.storage.cell(place),
        seeds,
        table_state.left_out_by,
        newest_of(weights_of(schema)),
        table_state.end_later if table_state.max_times_sampled else None,
    )
