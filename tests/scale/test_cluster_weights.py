"""Weights that reach the shards of a cluster at different moments, or some of them alone."""

from __future__ import annotations

import numpy as np
from cluster_rig import cluster_of, drawn, until

from async_loader import ReplayBuffer

WEIGHTS = {"w": np.zeros(3)}
STEPS = {"x": "int64", "policy_version": "int64"}


def test_steps_of_a_version_that_one_shard_does_not_have_yet_are_drawn_once_it_has(tmp_path):
    tables = [ReplayBuffer(1_000, STEPS, seed=0) for _ in range(2)]
    with cluster_of(tmp_path, tables) as (_, _, client):
        near, far = (client.shard(name) for name in client.shards)
        table = client.table("t")
        writers = [table.writer() for _ in range(2)]

        def add(version, count):
            for writer in writers:  # each is bound to another shard
                for _ in range(count):
                    writer.append(x=0, policy_version=version)
                writer.flush()

        client.publish("policy", WEIGHTS, 1)
        add(1, 5)
        assert [len(one) for one in tables] == [5, 5]
        source = table.source(max_lag=1, prefetch=1)
        assert set(drawn(source, 16)["policy_version"].tolist()) == {1}
        near.publish("policy", WEIGHTS, 2)  # an actor has it from here
        add(2, 50)
        far.publish("policy", WEIGHTS, 2)
        client.publish("policy", WEIGHTS, 3)

        seen = set()

        def both():
            batch = drawn(source, 16)
            seen.update((batch["index"][batch["policy_version"] == 2] >> 56).tolist())
            return seen == {0, 1}

        until(both)
        source.close()
        for one in (near, far):
            stale = one.status()["tables"]["t"]["stale"]
            assert stale == {"became_old": 5, "came_old": 0, "other_run": 0}
        for writer in writers:
            writer.close()
