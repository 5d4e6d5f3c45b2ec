"""The torch drop-in module: work in every item."""

from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.torch import OURS, THEIRS
from benchmarks.doors.workloads import DECODE

ROW = row(
    "torch", "torch", DECODE, OURS, THEIRS, settings=(NO_WORKERS, PROCESSES), more=((PROCESSES, 2),)
)
