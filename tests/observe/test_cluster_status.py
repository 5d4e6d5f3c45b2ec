"""The statuses of a cluster's shards as one: sums, clients that count once, and who waits."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest
from hypothesis import given
from status_rig import (
    COUNTS,
    RATES,
    cluster_status,
    clusters,
    feeder_status,
    session_status,
    table_status,
)

from async_loader.observe.dashboard.frame import frame_of, merged


def answered(cluster):
    return {
        name: one["status"] for name, one in cluster["shards"].items() if one["status"] is not None
    }


@pytest.mark.slow
@given(clusters())
def test_counts_of_tables_are_sums_over_the_shards(cluster):
    whole, there = merged(cluster), answered(cluster)
    assert whole["tables"].keys() == {name for one in there.values() for name in one["tables"]}
    for name, table in whole["tables"].items():
        parts = [one["tables"][name] for one in there.values() if name in one["tables"]]
        assert table["shards"] == len(parts)
        for key in (*COUNTS, *RATES):
            assert table[key] == sum(one[key] for one in parts), key
        assert sum(table["stale"].values()) == sum(sum(one["stale"].values()) for one in parts)


@pytest.mark.slow
@given(clusters())
def test_nothing_that_waits_is_lost_and_each_names_its_shard(cluster):
    found = Counter(
        (name, text)
        for name, table in merged(cluster)["tables"].items()
        for text in table["waiting"]
    )
    assert found == Counter(
        (name, f"{shard} {text}")
        for shard, one in answered(cluster).items()
        for name, table in one["tables"].items()
        for text in table["waiting"]
    )


@pytest.mark.slow
@given(clusters())
def test_no_client_is_lost_and_none_counts_twice(cluster):
    whole, there = merged(cluster), answered(cluster)
    sessions = [one for status in there.values() for one in status["sessions"]]
    for key in ("writers", "readers", "rows_in", "batches_out", "in_flight_bytes"):
        assert sum(one[key] for one in whole["sessions"]) == sum(one[key] for one in sessions), key
    pids = [one["pid"] for one in whole["sessions"]]
    assert sorted(pids) == sorted({one["pid"] for one in sessions})


@pytest.mark.slow
@given(clusters())
def test_merging_changes_nothing_and_every_shard_has_a_row(cluster):
    before = copy.deepcopy(cluster)
    frame = frame_of(cluster)
    assert cluster == before
    json.dumps(frame, allow_nan=False)
    assert [row["name"] for row in frame["shards"]] == list(cluster["shards"])
    assert [row["tables"] for row in frame["shards"] if row["state"] != "silent"] == [
        one["tables"] for one in answered(cluster).values()
    ]


def test_watchers_are_left_out_and_a_client_is_what_it_is_in_one_shard():
    here = [session_status(1), session_status(2, role="watcher"), session_status(3, role="other")]
    there = [session_status(1, role="evaluator", writers=0), session_status(2, role="watcher")]
    died = [session_status(4, state="died")]
    one, other = feeder_status(sessions=here, sessions_died=died), feeder_status(sessions=there)
    for frame in (frame_of(one), frame_of(cluster_status(other, None, one))):
        shown = [(one["name"], one["role"]) for one in frame["sessions"]]
        assert shown == [("actor-1", "actor"), ("actor-3", "other")]
        assert (frame["sessions_open"], frame["sessions_died"]) == (2, died)


# -- who waits -------------------------------------------------------------------------------------


def shard(**table):
    return feeder_status(tables={"replay": table_status(**table)})


def test_a_headline_names_the_shards_in_which_learners_wait_and_why():
    why = "reader 1: 5 items, and a batch needs 32"
    waiting = {"readers": 1, "waiting": [why]}
    frame = frame_of(
        cluster_status(
            shard(readers_wait=0.1, **waiting), shard(readers_wait=0.5, **waiting), shard()
        )
    )
    assert frame["headlines"] == [
        (
            "wait",
            "Learners wait for actors in replay, 20% of the time (shard-1 50%, shard-0 "
            f"10%): shard-1 {why}",
        )
    ]
