"""Row 4: uniform draws of 256 small transitions."""

from benchmarks.harness import Target
from benchmarks.replay import uniform

ROW = uniform.row("4", 256, Target(">= 3x cpprb", "us", 3, uniform.OURS, (uniform.CPPRB,)))
