"""Draws of 64 sequences of 80 frames."""

from benchmarks.trajectories.rows import row
from benchmarks.trajectories.workloads import Steps

WORK = Steps(20_000, 64, 80, frames=True)
ROW = row("frames", WORK, "frames of 84 x 84 bytes")
