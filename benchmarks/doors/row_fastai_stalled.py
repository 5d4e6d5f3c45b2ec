"""The fastai drop-in module: one item in fifty holds its worker up."""

from benchmarks.doors.fastai import OURS, THEIRS
from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.workloads import STALLED

ROW = row("fastai", "fastai", STALLED, OURS, THEIRS, (NO_WORKERS, PROCESSES))
