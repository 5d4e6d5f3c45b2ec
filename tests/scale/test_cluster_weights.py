"""Weights that reach the shards of a cluster at different moments, or some of them alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from cluster_rig import PATIENCE_S, cluster_of, drawn, filled, until

from async_loader import ReplayBuffer, connect

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

        def both():
            batch = drawn(source, 16)
            return set((batch["index"][batch["policy_version"] == 2] >> 56).tolist()) == {0, 1}

        until(both)
        source.close()
        for one in (near, far):
            stale = one.status()["tables"]["t"]["stale"]
            assert stale == {"became_old": 5, "came_old": 0, "other_run": 0}
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("timeout_s", [0.0, PATIENCE_S])
def test_another_shard_is_asked_for_newer_weights_where_the_nearest_has_none_at_all(
    tmp_path, timeout_s
):
    with cluster_of(tmp_path, [filled(0, 1), filled(1, 1)]) as (_, _, client):
        near, far = (client.shard(name) for name in client.shards)
        far.publish("policy", WEIGHTS, 5)  # the nearest was started anew
        found = client.latest("policy", newer_than=3, timeout_s=timeout_s)
        assert found.version == 5
        # it has them now, and they are not newer: the others are not asked any more
        near.publish("policy", WEIGHTS, 5)
        far.publish("policy", WEIGHTS, 6)
        assert client.latest("policy", newer_than=found) is None
        assert client.latest("policy", newer_than=5, timeout_s=0.01) is None


def test_newer_weights_are_found_in_the_shard_that_has_some(tmp_path):
    with cluster_of(tmp_path, [filled(0, 1), filled(1, 1)]) as (_, _, client):
        far = client.shard("shard-1")
        far.publish("policy", WEIGHTS, 5)
        found = []
        thread = threading.Thread(
            target=lambda: found.append(client.latest("policy", 5, timeout_s=PATIENCE_S))
        )
        thread.start()
        pending = client._connections.all[0].connection._calls.pending
        until(lambda: any(waits(one) for one in list(pending.values())))
        far.publish("policy", WEIGHTS, 6)
        thread.join()
        assert found[0].version == 6


def waits(call):
    return getattr(call.body, "timeout_s", None) is not None


def test_the_first_weights_are_found_in_whichever_shard_they_are(tmp_path):
    with cluster_of(tmp_path, [filled(0, 1), filled(1, 1)]) as (_, _, client):
        found = []
        thread = threading.Thread(
            target=lambda: found.append(client.latest("policy", 5, timeout_s=PATIENCE_S))
        )
        thread.start()
        pending = client._connections.all[0].connection._calls.pending
        until(lambda: any(waits(one) for one in list(pending.values())))
        client.shard("shard-1").publish("policy", WEIGHTS, 6)
        thread.join()
        assert found[0].version == 6


def test_a_number_is_of_the_run_that_was_had_last_from_whichever_shard(tmp_path):
    with (
        cluster_of(tmp_path / "a", [filled(0, 1), filled(1, 1)]) as (shards, _, client),
        connect(shards[1].address) as later,
    ):
        client.publish("policy", WEIGHTS, 5)
        assert client.latest("policy").version == 5
        assert client.latest("policy", newer_than=5) is None
        shards[0].die()
        until(lambda: not client._connections.all[0].is_open)
        later.publish("policy", WEIGHTS, 1)  # another run
        assert client.latest("policy", newer_than=5).version == 1
