"""The gluon drop-in module: arrays, which ours gathers in bulk."""

from benchmarks.doors.gluon import OURS, THEIRS
from benchmarks.doors.sides import NO_WORKERS, row
from benchmarks.doors.workloads import ARRAYS

ROW = row("gluon", "gluon", ARRAYS, OURS, THEIRS, best=(NO_WORKERS, 4))
