"""Rows 4 to 7 of the design's table and what belongs to them: the table beside cpprb, torchrl,
stable-baselines3 and tianshou.
"""

ROWS = (
    "row04_uniform",
    "row05_uniform_large",
    "row06_atari",
    "row07_prioritized",
    "nstep",
    "linked",
    "add",
    "extend",
    "memory",
    "codecs",
    "disk",
    "dqn",
)
