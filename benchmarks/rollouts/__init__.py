"""Rollouts of language models through a feeder, beside TransferQueue and `multiprocessing.Queue`:
ragged fields, late rewards, one trajectory, the hand-over to a learner that waits, and kills.
"""

ROWS = ("fields", "tokens", "one", "handover", "kills")
