"""Rollouts of language models through a feeder, beside TransferQueue and `multiprocessing.Queue`:
ragged fields, late rewards, one trajectory, and the hand-over to a learner that waits.
"""

ROWS = ("fields", "tokens", "one", "handover")
