"""Draws of sequences by the size and the fill of the table: what they cost should not depend on
either.
"""

from functools import partial

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.trajectories import tables
from benchmarks.trajectories.gather import over_gather
from benchmarks.trajectories.workloads import Steps

CAPACITIES = 100_000, 1_000_000
FILLS = 0.1, 1.0
SMALL = 256, 50


def sizes(seconds: float, writes: bool) -> Figures:
    """Measure each capacity and fill for its share of the time."""
    ratios = {}
    for capacity in CAPACITIES:
        for fill in FILLS:
            work = Steps(int(capacity * fill), *SMALL)
            buffer = tables.ours(work, capacity)
            take = tables.ours_take(work, buffer, writes)
            for _ in range(5):
                take()
            share = seconds / len(CAPACITIES) / len(FILLS)
            ratios[f"{capacity}_{fill:.0%}"] = over_gather(buffer, take, share)
            del buffer, take
    middle = sum(ratios.values()) / len(ratios)
    return {
        "worst": max(ratios.values()),
        "spread": max(abs(one / middle - 1) for one in ratios.values()),
        **ratios,
    }


ROW = Row(
    "sizes",
    "256 sequences of 50 small steps: tables of 100,000 and 1,000,000 steps, 10% and 100% full",
    (
        Metric("worst", "times a gather of the same rows by id, at worst", digits=2),
        Metric("spread", "farthest from the mean of the four", digits=2),
    ),
    (
        Contender("async_loader", "project", partial(sizes, writes=False)),
        Contender("async_loader, after each write", "project", partial(sizes, writes=True)),
    ),
    (
        Target("times a gather by id, at worst", "worst", 1.5, "async_loader"),
        Target("spread over sizes and fills", "spread", 0.15, "async_loader"),
        Target("spread, after each write", "spread", 0.15, "async_loader, after each write"),
    ),
    seconds=8.0,
)
