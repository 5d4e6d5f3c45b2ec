"""The fastai drop-in module: items that cost nothing: what is measured is the loader."""

from benchmarks.doors.fastai import OURS, THEIRS
from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.workloads import ARRAYS

ROW = row("fastai", "fastai", ARRAYS, OURS, THEIRS, (NO_WORKERS, PROCESSES))
