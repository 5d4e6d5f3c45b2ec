"""The ding drop-in module: one job in fifty holds its worker up."""

from benchmarks.doors import ding
from benchmarks.doors.workloads import STALLED

ROW = ding.row("stalled", f"jobs, {STALLED.title}", ding.jobs, STALLED, {0: 1, 2: 1})
