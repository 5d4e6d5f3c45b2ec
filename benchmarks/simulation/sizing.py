"""How much memory, network and processor time a cluster takes: arithmetic, no events."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulation.costs import Assumed, Costs

BATCH, BATCHES_PER_S = 256, 100
"""What the learner of the tables takes."""
CHUNK = 64
"""Rows of a writer's message."""
BUSY = 0.7
"""The share of a core, and of a link, that is planned for."""
CORES, MEMORY_BYTES = 16, 128 << 30
"""Of the tables' host; its link is that of `Assumed`."""
MEMORY = 0.75
"""The share of a host's memory that is planned for tables."""


@dataclass
class Size:
    """What steps of one kind take.

    Attributes
    ----------
    kind : str
    memory_bytes : float
        Of 1,000,000 steps.
    network_bytes_per_s : float
        Of a learner on another host.
    learner : float
        The cores that shards need for it.
    inserts_per_s, samples_per_s : float
        Rows that a shard takes, or sends, by `BUSY` of its core.
    on_link : float
        Learners on other hosts that a host's link carries.
    on_host : int
        Shards of 1,000,000 steps each on a host: one for a core, and their memory.
    """

    kind: str
    memory_bytes: float
    network_bytes_per_s: float
    learner: float
    inserts_per_s: float
    samples_per_s: float
    on_link: float
    on_host: int


def most_batches_per_s(costs: Costs, shards: int) -> float:
    """Return the batches a second by which a learner's process has no time for anything else.

    A batch of independent draws has rows of ``shards * (1 - (1 - 1 / shards) ** BATCH)`` shards.
    """
    drawn_from = shards * (1.0 - (1.0 - 1.0 / shards) ** BATCH)
    return 1e6 / (costs.learner_us + drawn_from * costs.learner_shard_us)


def sizes(costs: Costs, assumed: Assumed) -> list[Size]:
    """Return the sizes of small steps and of Atari's."""
    kinds = (
        ("small", costs.small_insert_us, costs.small_insert_row_us, costs.small_sample_us,
         costs.small_sample_row_us, costs.small_step_bytes, costs.small_row_bytes),
        ("Atari", costs.atari_insert_us, costs.atari_insert_row_us, costs.atari_sample_us,
         costs.atari_sample_row_us, costs.atari_step_bytes, costs.atari_row_bytes),
    )  # fmt: skip
    return [_size(assumed, *one) for one in kinds]


def _size(
    assumed: Assumed,
    kind: str,
    insert_us: float,
    insert_row_us: float,
    sample_us: float,
    sample_row_us: float,
    step_bytes: float,
    row_bytes: float,
) -> Size:
    batch_us = sample_us + BATCH * sample_row_us
    network = BATCHES_PER_S * BATCH * row_bytes
    memory = step_bytes * 1e6
    return Size(
        kind=kind,
        memory_bytes=memory,
        network_bytes_per_s=network,
        learner=BATCHES_PER_S * batch_us / 1e6,
        inserts_per_s=BUSY * 1e6 * CHUNK / (insert_us + CHUNK * insert_row_us),
        samples_per_s=BUSY * 1e6 * BATCH / batch_us,
        on_link=BUSY * assumed.bytes_per_s / network,
        on_host=max(1, min(CORES, int(MEMORY * MEMORY_BYTES / memory))),
    )
