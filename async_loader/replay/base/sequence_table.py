"""What kernels know of the steps at which sequences begin: an int64 array for each sampler."""

from __future__ import annotations

SPAN = 0  # steps from the first to the last
SHORTEST = 1  # the same for a sequence that the end of its episode cuts short
STRIDE = 2  # steps from the beginning of one to that of the next
EPISODES = 3  # the longest episode that is a sequence; 0: sequences are parts of episodes
LEARNED_FROM = 4  # the first step to learn from, counted from the sequence's first
LEARNED = 5  # steps to learn from
STEP = 6  # from one of them to the next
MOST = 7  # that one step completes
GOES_ON = 8  # 1: sequences go on into the next episode of their stream
TRACKING = 9
"""Numbers of a sampler."""
