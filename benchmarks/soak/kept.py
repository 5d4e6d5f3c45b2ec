"""Kills of a feeder with kept tables, under load of eight writers and two learners."""

from benchmarks.soak import kills

ROUNDS = 1000

ROW = kills.row(
    "kept",
    f"{ROUNDS} kills of a feeder with kept tables: acknowledged rows are there once",
    "async_loader, 6 kept tables",
    "tests/feeder/test_kept_feeder.py",
    ROUNDS,
    "the longest pause of a client after a restart, s",
    "nothing acknowledged is lost, nothing is there twice",
    ("clients go on within 2 s", 2),
)
