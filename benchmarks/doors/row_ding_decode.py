"""The ding drop-in module: jobs that have work to do."""

from benchmarks.doors import ding
from benchmarks.doors.workloads import DECODE

ROW = ding.row(
    "decode", f"jobs, {DECODE.title}, chunk {ding.CHUNK}", ding.jobs, DECODE, {0: 1, 2: 2}
)
