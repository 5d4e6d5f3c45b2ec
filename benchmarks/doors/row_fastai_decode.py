"""The fastai drop-in module: work in every item."""

from benchmarks.doors.fastai import OURS, THEIRS
from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.workloads import DECODE

ROW = row("fastai", "fastai", DECODE, OURS, THEIRS, (NO_WORKERS, PROCESSES), more=((PROCESSES, 2),))
