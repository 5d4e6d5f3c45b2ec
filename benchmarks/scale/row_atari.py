"""Batches of 256 Atari transitions from two shards on this host, and from actors of Ray."""

from functools import partial

from benchmarks.feeder.sampling import METRICS
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Contender, Row, Target
from benchmarks.replay.workloads import BATCH
from benchmarks.scale import ours, theirs

WORK = Work("atari")
TWO, ONE = "async_loader, 2 shards", "async_loader, 1 shard"
TORCHRL, PLAIN = "torchrl, RayReplayBuffer", "ray, a plain actor"

ROW = Row(
    "atari",
    f"cluster: batches of {BATCH} transitions of two 4x84x84 stacks",
    METRICS[:3],
    (
        Contender(TWO, "project", partial(ours.cluster, work=WORK, shards=2)),
        Contender(ONE, "project", partial(ours.cluster, work=WORK, shards=1)),
        Contender(TORCHRL, "ray-peers", partial(theirs.torchrl, work=WORK)),
        Contender(PLAIN, "ray-peers", partial(theirs.plain_actor, work=WORK)),
    ),
    (
        Target("2 shards on one host: >= 0.9x one", "samples_per_s", 0.9, TWO, (ONE,)),
        Target(">= 10x the best actor of Ray", "samples_per_s", 10, TWO, (TORCHRL, PLAIN)),
    ),
)
