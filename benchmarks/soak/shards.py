"""Kills of a cluster's processes on a real Ray, under load: a shard and all processes of a node are
killed in turn.
"""

from benchmarks.soak import kills

ROUNDS = 200

ROW = kills.row(
    "shards",
    f"{ROUNDS} kills of a cluster's processes: rows are there once, or counted as lost",
    "async_loader, 2 shards on 3 nodes",
    "tests/scale/test_ray_cluster.py",
    ROUNDS,
    "the learner's longest pause, s",
    "nothing lost uncounted, nothing twice",
    ("learners go on within 5 s", 5),
)
