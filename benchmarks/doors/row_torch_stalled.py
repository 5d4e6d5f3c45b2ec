"""The torch drop-in module: one item in 50 takes 100 times as long."""

from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.torch import OURS, THEIRS
from benchmarks.doors.workloads import STALLED

ROW = row(
    "torch", "torch", STALLED, OURS, THEIRS, settings=(NO_WORKERS, PROCESSES), epoch_start=None
)
