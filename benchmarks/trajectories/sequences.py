"""Draws of 256 sequences of 50 small steps."""

from benchmarks.trajectories.rows import row
from benchmarks.trajectories.workloads import Steps

WORK = Steps(1_000_000, 256, 50)
ROW = row("sequences", WORK, "small steps", others=True)
