"""The gluon drop-in module: items that keep a worker waiting."""

from benchmarks.doors.gluon import OURS, THEIRS
from benchmarks.doors.sides import row
from benchmarks.doors.workloads import STALLED

ROW = row("gluon", "gluon", STALLED, OURS, THEIRS, epoch_start=None)
