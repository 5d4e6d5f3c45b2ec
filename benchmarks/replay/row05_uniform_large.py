"""Row 5: uniform draws of 4096 small transitions."""

from benchmarks.harness import Target
from benchmarks.replay import uniform

ROW = uniform.row("5", 4096, Target(">= 5x cpprb", "us", 5, uniform.OURS, (uniform.CPPRB,)))
