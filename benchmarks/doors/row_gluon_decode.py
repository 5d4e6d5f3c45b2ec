"""The gluon drop-in module: work in every item."""

from benchmarks.doors.gluon import OURS, THEIRS
from benchmarks.doors.sides import PROCESSES, row
from benchmarks.doors.workloads import DECODE

ROW = row("gluon", "gluon", DECODE, OURS, THEIRS, more=((PROCESSES, 2),))
