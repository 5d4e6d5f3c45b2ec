"""The sampler of one learner: the table's, its own, or the table's with another seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.arguments import whole_seed
from async_loader.replay.samplers import Sampler, Uniform
from async_loader.replay.samplers.sampler import check_sampler
from async_loader.replay.samplers.seeded import Seeded
from async_loader.replay.table.table_state import TableState


class SourceSampler(NamedTuple):
    """A sampler, and whether it was attached to the table for one learner."""

    sampler: Any  # a Sampler, or a `Seeded` in front of the table's
    own: bool


def sampler_for(
    table_state: TableState, sampler: Sampler | None, seed: int | None, rank: int, world_size: int
) -> SourceSampler:
    """Choose the sampler of a learner, and attach its own. See `ReplayBuffer.source`."""
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
    words = None if seed is None else [rank, world_size, whole_seed(seed)]
    if sampler is None and words is not None:
        return SourceSampler(Seeded(table_state.sampler, words), False)
    if sampler is None and world_size > 1 and type(table_state.sampler) is Uniform:
        sampler = Uniform()
    if sampler is None:
        return SourceSampler(table_state.sampler, False)
    check_sampler("sampler", sampler)
    if not table_state.ready:
        raise ConfigError(
            "a sampler beside the table's needs a table: give a schema, or add a step first"
        )
    with table_state.lock:
        (spawned,) = table_state.seeds.spawn(1)
        entropy = [rank, *spawned.generate_state(4).tolist()] if words is None else words
        sampler.bind(table_state.table.items, np.random.SeedSequence(entropy))
        table_state.attach(sampler)
    return SourceSampler(sampler, True)
