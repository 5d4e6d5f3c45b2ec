"""Rows 1, 2, 11 and 12 of the design's table, and the start:
the loader beside torch's DataLoader and DI-engine's.
"""

ROWS = ("row01_jobs", "row02_dicts", "row11_next", "row12_close", "start")
