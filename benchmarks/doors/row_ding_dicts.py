"""The ding drop-in module: a list of dicts of tensors, which the learner's process collates."""

from benchmarks.doors import ding
from benchmarks.doors.workloads import ARRAYS

ROW = ding.row("dicts", "dicts of 28x28 uint8 tensors, batch 256", ding.dicts, ARRAYS, {0: 2})
