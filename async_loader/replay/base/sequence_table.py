"""What kernels know of sequences: an int64 array for each reader, and one for each sampler."""

from __future__ import annotations

# For reading: places of the time axis.
PLACES_OF_TIME = 0  # of every sequence
LEAST = 1  # that hold a step at least
DILATION = 2  # steps from place to place
BEFORE = 3  # steps that a stack shows: a step and those before it
FOLLOWED = 4  # 1: the observation after each step is shown
WHOLE = 5  # 1: the sequence is an episode, and ends with it
# The arrays of what is computed: address of the first element, bytes from sequence to sequence.
MASK, MASK_STRIDE = 6, 7
IS_FIRST, IS_FIRST_STRIDE = 8, 9
STEP_INDEX, STEP_INDEX_STRIDE = 10, 11
ACROSS = 12  # 1: sequences go on into the next episode of their stream
READING = 13
"""Numbers of a reader."""

# For the steps at which sequences begin.
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
