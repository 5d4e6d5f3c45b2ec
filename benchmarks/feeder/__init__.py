"""Rows 8 to 10 of the design's table: the feeder beside Reverb,
and beside bare ZeroMQ messages of the same bytes.
"""

ROWS = (
    "row08_small",
    "row08_atari",
    "row09_small",
    "row09_atari",
    "row10_stream",
    "both",
    "calls",
    "kept",
)
