"""What a user wants of the source of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_LEAST_AHEAD = 4
_MOST_AHEAD = 64


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
        Chunks that each shard may draw ahead; ``None``: four, or as many as a loader plans.
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
        return 8 if self.weighted else 32

    def ahead(self, planned: int) -> int:
        """Return how many chunks each shard may draw ahead."""
        if self.prefetch is not None:
            return min(self.prefetch, _MOST_AHEAD)
        return min(_MOST_AHEAD, max(_LEAST_AHEAD, planned))
