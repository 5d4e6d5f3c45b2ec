"""Sequences of steps and whole episodes: the table beside torchrl, RLlib, flashbax and Minari."""

ROWS = ("sequences", "frames", "sizes", "episodes")
