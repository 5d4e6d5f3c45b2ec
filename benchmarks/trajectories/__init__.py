"""Sequences of steps, whole episodes and hindsight goals: the table beside torchrl, RLlib,
flashbax, Minari and Stable-Baselines3.
"""

ROWS = ("sequences", "frames", "sizes", "episodes", "hindsight")
