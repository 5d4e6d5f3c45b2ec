"""What kernels know of hindsight goals: an int64 array for each reader."""

from __future__ import annotations

BEFORE = 0  # steps that a stack shows: a step and those before it
FOLLOWING = 1  # 1: what a step has achieved is in the row after it; 0: in its own
STRATEGY = 2  # which of an episode's goals
READING = 3
"""Numbers of a reader."""

STRATEGIES = ("future", "final", "episode")
FUTURE, FINAL_GOAL, EPISODE = range(3)

GOAL = 0  # the row of the table of fields for the new goals
ACHIEVED = 1  # for what each step has achieved; further rows are fields of each step
