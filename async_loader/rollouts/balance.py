"""Equal work: groups over ranks, and members over micro-batches with a limit of tokens."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from async_loader.errors import ConfigError

_ROUNDS = 64
"""Exchanges between the most and the least loaded, at most, for each share."""


def shares(
    costs: Sequence[float], count: int, sizes: Sequence[int], most: float
) -> list[list[int]]:
    """Return which items each of ``count`` shares has: none empty, ``sizes`` of at most ``most``
    together (or one item alone), the costs as equal as exchanges make them.

    The largest first, to the share with the least, as in R. L. Graham, Bounds on multiprocessing
    timing anomalies, 1969. Raises ConfigError if the items do not fit.
    """
    if len(costs) < count:
        raise ConfigError(f"{len(costs)} items are too few for {count} shares: none may be empty")
    made: list[list[int]] = [[] for _ in range(count)]
    loads, filled = [0.0] * count, [0] * count
    heap = [(0.0, i) for i in range(count)]
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    for done, item in enumerate(order):
        empty = sum(not one for one in made)
        passed, place = [], -1
        while heap:
            load, i = heapq.heappop(heap)
            passed.append((load, i))
            if not made[i] or (filled[i] + sizes[item] <= most and empty < len(order) - done):
                place = i
                break
        if place < 0:
            raise ConfigError(f"{len(costs)} items do not fit into {count} shares of {most:g}")
        for load, i in passed:
            if i != place:
                heapq.heappush(heap, (load, i))
        made[place].append(item)
        loads[place] += costs[item]
        filled[place] += sizes[item]
        heapq.heappush(heap, (loads[place], place))
    _exchange(made, loads, filled, costs, sizes, most)
    return [sorted(one) for one in made]


def _exchange(
    made: list[list[int]],
    loads: list[float],
    filled: list[int],
    costs: Sequence[float],
    sizes: Sequence[int],
    most: float,
) -> None:
    """Move or exchange items between the most loaded share and others while that helps."""
    for _ in range(_ROUNDS * len(made)):
        high = max(range(len(made)), key=loads.__getitem__)
        for low in sorted(range(len(made)), key=loads.__getitem__):
            if (
                low == high
                or (best := _best(made, loads, filled, costs, sizes, most, high, low)) is None
            ):
                continue
            give, take = best
            for source, target, item in ((high, low, give), (low, high, take)):
                if item is not None:
                    made[source].remove(item)
                    made[target].append(item)
                    loads[source] -= costs[item]
                    loads[target] += costs[item]
                    filled[source] -= sizes[item]
                    filled[target] += sizes[item]
            break
        else:
            return


def _best(
    made: list[list[int]],
    loads: list[float],
    filled: list[int],
    costs: Sequence[float],
    sizes: Sequence[int],
    most: float,
    high: int,
    low: int,
) -> tuple[int, int | None] | None:
    """Return what to give and to take so that two shares differ least; ``None``: nothing helps."""
    gap, best, least = loads[high] - loads[low], None, 1e-9 * max(1.0, loads[high])
    gain = least
    for give in made[high]:
        for take in (None, *made[low]):
            moved = costs[give] - (0.0 if take is None else costs[take])
            more = sizes[give] - (0 if take is None else sizes[take])
            if take is None and len(made[high]) == 1:
                continue
            better = gap - abs(gap - 2 * moved)
            if better > gain and filled[low] + more <= most and filled[high] - more <= most:
                gain, best = better, (give, take)
    return best


def micro_batches(
    lengths: Sequence[Sequence[int]], tokens: int, costs: Sequence[Sequence[float]]
) -> list[list[list[int]]]:
    """Return for each rank which of its members each micro-batch has: the same number on each rank.

    Parameters
    ----------
    lengths, costs : sequences [ranks][members]
    tokens : int
        Of one micro-batch at most. A longer member is alone. Where a rank has fewer members than
        others need micro-batches, there are as many as it has members, and they are larger.
    """
    fewest = min(len(one) for one in lengths)
    count = max(_least(one, tokens) for one in lengths)
    while count <= fewest:
        try:
            return [_split(one, costs[i], count, tokens) for i, one in enumerate(lengths)]
        except ConfigError:
            count += 1
    most = max(map(sum, lengths))  # one rank has too few members: the others' are larger, not more
    return [_split(one, costs[i], fewest, most) for i, one in enumerate(lengths)]


def _least(lengths: Sequence[int], tokens: int) -> int:
    """Return how many micro-batches are needed at least."""
    alone = sum(one > tokens for one in lengths)
    rest = sum(one for one in lengths if one <= tokens)
    return max(1, alone + math.ceil(rest / tokens))


def _split(
    lengths: Sequence[int], costs: Sequence[float], count: int, tokens: int
) -> list[list[int]]:
    alone = [[i] for i, one in enumerate(lengths) if one > tokens]
    rest = [i for i, one in enumerate(lengths) if one <= tokens]
    if len(alone) == count and not rest:
        return alone
    parts = shares([costs[i] for i in rest], count - len(alone), [lengths[i] for i in rest], tokens)
    return [*alone, *([rest[i] for i in one] for one in parts)]
