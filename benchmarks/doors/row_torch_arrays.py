"""The torch drop-in module: arrays, beside torch's fastest idiom
for them (a batch sampler as the sampler, no batch size).
"""

from benchmarks.doors.sides import NO_WORKERS, PROCESSES, row
from benchmarks.doors.torch import ARRAYS_OURS, ARRAYS_THEIRS
from benchmarks.doors.workloads import ARRAYS

ROW = row(
    "torch",
    "torch",
    ARRAYS,
    ARRAYS_OURS,
    ARRAYS_THEIRS,
    settings=(NO_WORKERS, PROCESSES),
    best=(NO_WORKERS, 2.5),
)
