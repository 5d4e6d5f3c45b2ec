"""The sampler of one learner: the table's, its own, or the table's with another seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.arguments import whole_seed
from async_loader.replay.samplers import Sampler, Uniform
from async_loader.replay.samplers.binding import like
from async_loader.replay.samplers.sampler import check_sampler
from async_loader.replay.samplers.seeded import Seeded
from async_loader.replay.table.lag_sampler import LagSampler, version_field, weights_of
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences, View
from async_loader.validation import whole

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

    def goal_seeds(self) -> np.random.SeedSequence | None:
        """Return the seed of the numbers that choose hindsight goals, if the learner has a seed."""
        return None if self.words is None else np.random.SeedSequence(self.words, spawn_key=(0,))


def drawing_sampler(table_state: TableState, sampler: Any, view: View | None) -> Any:
    """Return what draws the items of ``view`` as a sampler of the table does.

    That is the sampler itself, but for sequences; see `SequenceSampler`.
    """
    view = table_state.view if view is None else view
    if not isinstance(view, Sequences) or not table_state.ready:
        return sampler
    if isinstance(sampler, Seeded):
        inner = drawing_sampler(table_state, sampler.sampler, view)
        return sampler if inner is sampler.sampler else sampler.over(inner)
    return table_state.sequence_sampler(view) if sampler is table_state.sampler else sampler


def sampler_for(
    table_state: TableState,
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
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
    words = None if seed is None else [rank, world_size, whole_seed(seed)]
    shared: Any = table_state.sampler
    if max_lag is not None:
        whole("max_lag", max_lag, 0)
        sampler = like(shared) if sampler is None else sampler
    elif sampler is None and words is None and world_size > 1 and type(shared) is Uniform:
        sampler = Uniform()
    if sampler is None:
        shared = Seeded(shared, words, masses) if masses or words is not None else shared
        return SourceSampler(drawing_sampler(table_state, shared, view), None, words)
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
    table_state: TableState,
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
        lambda rows: table_state.table.given_to(rows),
        seeds,
        newest_of(weights_of(schema)),
        table_state.end_later if table_state.max_times_sampled else None,
    )
