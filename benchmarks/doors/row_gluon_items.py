"""The gluon drop-in module: arrays that lie in a dataset of the user's own,
so that each item is asked for.
"""

from benchmarks.doors.gluon import OURS, THEIRS
from benchmarks.doors.sides import row
from benchmarks.doors.workloads import ITEMS

ROW = row("gluon", "gluon", ITEMS, OURS, THEIRS)
