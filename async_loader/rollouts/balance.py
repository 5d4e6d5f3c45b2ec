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
    one = _Shares(costs, count, sizes, most)
    one.fill()
    one.exchange()
    return [sorted(items) for items in one.made]


class _Shares:
    """Shares that are being made. Parameters: see `shares`."""

    def __init__(
        self, costs: Sequence[float], count: int, sizes: Sequence[int], most: float
    ) -> None:
        self.costs, self.sizes, self.most = costs, sizes, most
        self.made: list[list[int]] = [[] for _ in range(count)]
        self.loads, self.filled = [0.0] * count, [0] * count

    def fill(self) -> None:
        made, count = self.made, len(self.made)
        heap = [(0.0, i) for i in range(count)]
        order = sorted(range(len(self.costs)), key=lambda i: (-self.costs[i], i))
        for done, item in enumerate(order):
            empty = sum(not one for one in made)
            passed, place = [], -1
            while heap:
                load, i = heapq.heappop(heap)
                fits = self.filled[i] + self.sizes[item] <= self.most
                if not made[i] or (fits and empty < len(order) - done):
                    place = i
                    break
                passed.append((load, i))
            if place < 0:
                text = f"{len(order)} items do not fit into {count} shares of {self.most:g}"
                raise ConfigError(text)
            self._put(place, item)
            for one in (*passed, (self.loads[place], place)):
                heapq.heappush(heap, one)

    def _put(self, place: int, item: int, sign: int = 1) -> None:
        """Add an item to a share; ``sign=-1``: take it out."""
        (self.made[place].append if sign > 0 else self.made[place].remove)(item)
        self.loads[place] += sign * self.costs[item]
        self.filled[place] += sign * self.sizes[item]

    def exchange(self) -> None:
        """Move or exchange items between the most loaded share and others while that helps."""
        for _ in range(_ROUNDS * len(self.made)):
            low_first = sorted(range(len(self.made)), key=self.loads.__getitem__)
            high = max(range(len(self.made)), key=self.loads.__getitem__)
            for low in low_first:
                if low != high and (best := self._best(high, low)) is not None:
                    for source, target, item in zip((high, low), (low, high), best, strict=True):
                        if item is not None:
                            self._put(source, item, -1)
                            self._put(target, item)
                    break
            else:
                return

    def _best(self, high: int, low: int) -> tuple[int, int | None] | None:
        """Return what to give and to take so that two shares differ least; ``None``: nothing
        helps.
        """
        costs, sizes, most = self.costs, self.sizes, self.most
        gap, best = self.loads[high] - self.loads[low], None
        gain = 1e-9 * max(1.0, self.loads[high])
        for give in self.made[high]:
            for take in (None, *self.made[low]):
                moved = costs[give] - (0.0 if take is None else costs[take])
                more = sizes[give] - (0 if take is None else sizes[take])
                if take is None and len(self.made[high]) == 1:
                    continue
                better = gap - abs(gap - 2 * moved)
                fits = self.filled[low] + more <= most and self.filled[high] - more <= most
                if better > gain and fits:
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
