"""What a user wants of the source of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AGE, WEIGHTED_AGE = 64, 16
"""Batches after which rows that were drawn ahead are old: twice those that a single feeder may have
ahead. Fewer where rows have weights, which are those of the moment of the draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Settings of a `ClusterSource`.

    Attributes
    ----------
    words : tuple of int
        The seed.
    learners : int
        ``world_size``.
    min_size : int
        Items of all shards together that each batch waits for.
    prefetch : int | None
        Chunks that each shard may draw ahead; ``None``: see `shares.chunks_of`, and fewer of large
        ones.
    timeout_s : float | None
        For a batch; ``None``: as long as the loader waits.
    weighted, queue : bool
        What is known of the sampler before a shard is asked for rows.
    fresh : bool
        Draw all rows of a batch when it is asked for.
    transport : "auto" | "shm" | "tcp"
    """

    words: tuple[int, ...]
    learners: int = 1
    min_size: int = 1
    prefetch: int | None = None
    timeout_s: float | None = None
    weighted: bool = False
    queue: bool = False
    fresh: bool = False
    transport: Literal["auto", "shm", "tcp"] = "auto"

    @property
    def most_age(self) -> int:
        """See shard_rows.py, NOTE [age of rows]."""
        return WEIGHTED_AGE if self.weighted else AGE
