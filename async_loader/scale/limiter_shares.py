"""How many samples each shard's limiter is to be given, for all of them to hold as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ShardCursor(NamedTuple):
    """Where a shard's limiter is; in samples.

    Attributes
    ----------
    moved : int
        Samples that other shards gave, less those that they took. The cursor has them.
    cursor : float
        What inserting has earned and sampling has not spent: see `RateLimiter`.
    low, high : float
        Its bounds.
    """

    moved: int
    cursor: float
    low: float
    high: float


def even_shares(shards: Sequence[ShardCursor]) -> list[int]:
    """Return what ``moved`` is to become in each shard, 0 in sum.

    All cursors come to the same height between their bounds, so that each shard may be inserted
    into and sampled from by as much as its bounds are apart: one that gets few steps is sampled as
    often as the whole allows, and one that gets many is not held back while others have room.
    """
    rooms = [one.high - one.low for one in shards]
    own = [one.cursor - one.moved - one.low for one in shards]  # height above the lower bound
    height = sum(own) / sum(rooms)
    exact = [height * room - above for room, above in zip(rooms, own, strict=True)]
    whole = [round(one) for one in exact]
    errors = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i], reverse=sum(whole) > 0)
    step = -1 if sum(whole) > 0 else 1
    for i in errors[: abs(sum(whole))]:
        whole[i] += step
    return whole


def differ(shards: Sequence[ShardCursor], shares: Sequence[int], tolerance: float) -> bool:
    """Return whether some shard is further from its share than this part of its room, or the sum
    is not 0.
    """
    return sum(one.moved for one in shards) != 0 or any(
        abs(one.moved - share) > max(1.0, tolerance * (one.high - one.low))
        for one, share in zip(shards, shares, strict=True)
    )
