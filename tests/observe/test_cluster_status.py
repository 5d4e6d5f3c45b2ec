"""The statuses of a cluster's shards as one: sums, clients that count once, and who waits."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from status_rig import (
    COUNTS,
    RATES,
    cluster_status,
    clusters,
    feeder_status,
    session_status,
    shard_status,
    table_status,
)

from async_loader.observe.cluster_status import merged, paired
from async_loader.observe.dashboard.frame import frame_of
from async_loader.observe.dashboard.server import History


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
        for policy, lags in table["policy_lags"].items():
            received = [one["policy_lags"][policy] for one in parts if policy in one["policy_lags"]]
            assert sum(lags["counts"]) == sum(sum(one["counts"]) for one in received)


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
    assert len({one["id"] for one in whole["sessions"]}) == len(whole["sessions"])


@pytest.mark.slow
@given(clusters(), st.randoms())
def test_the_order_in_which_shards_are_named_does_not_matter(cluster, random):
    names = list(cluster["shards"])
    random.shuffle(names)
    shuffled = {**cluster, "shards": {name: cluster["shards"][name] for name in names}}
    assert json.dumps(merged(shuffled)) == json.dumps(merged(cluster))


@pytest.mark.slow
@given(clusters())
def test_merging_changes_nothing_and_every_shard_has_a_row(cluster):
    before = copy.deepcopy(cluster)
    frame = frame_of(*paired(cluster, cluster))
    assert cluster == before
    json.dumps(frame, allow_nan=False)
    assert [row["name"] for row in frame["shards"]] == list(cluster["shards"])
    assert sum(row["items"] for row in frame["shards"]) == sum(
        one["size"] for one in frame["tables"]
    )


def test_of_a_feeder_nothing_is_merged():
    status = feeder_status()
    assert paired(status, None) == (status, None)
    assert frame_of(status, None)["shards"] == []


# -- clients ---------------------------------------------------------------------------------------


def test_a_client_is_with_the_shards_that_it_writes_or_reads():
    learner = session_status(1, readers=1, writers=0)
    idle = session_status(2, writers=0)
    whole = merged(
        cluster_status(
            feeder_status(sessions=[learner, idle]),
            feeder_status(sessions=[{**learner, "id": 9}, session_status(2, id=4)]),
        )
    )
    assert [one["shards"] for one in whole["sessions"]] == [["shard-0", "shard-1"], ["shard-1"]]
    assert [one["readers"] for one in whole["sessions"]] == [2, 0]


def test_a_client_that_one_of_its_shards_has_lost_has_died():
    whole = merged(
        cluster_status(
            feeder_status(sessions=[session_status(1)]),
            feeder_status(sessions=[session_status(1, connected=False, silent_s=4.0)]),
        )
    )
    (client,) = frame_of(whole, None)["clients"]
    assert (client["state"], client["silent_s"]) == ("died", 4.0)


def test_a_client_without_writers_there_may_leave_a_shard():
    gone = session_status(1, writers=0, connected=False)
    whole = merged(
        cluster_status(feeder_status(sessions=[session_status(1)]), feeder_status(sessions=[gone]))
    )
    assert frame_of(whole, None)["clients"][0]["state"] == "connected"


# -- rates, and who waits --------------------------------------------------------------------------


def shard(uptime_s, incarnation="a", **table):
    tables = {"replay": table_status(**table)}
    return feeder_status(uptime_s=uptime_s, incarnation=incarnation, tables=tables)


def frame_between(before, now):
    return frame_of(*paired(cluster_status(*now), cluster_status(*before)))


def test_rates_are_sums_over_the_shards():
    frame = frame_between(
        [shard(10.0, inserted=10), shard(500.0, inserted=20)],
        [shard(12.0, inserted=110), shard(502.0, inserted=40)],
    )
    assert frame["tables"][0]["in_per_s"] == 60.0
    assert [row["in_per_s"] for row in frame["shards"]] == [50.0, 10.0]


def test_a_shard_that_comes_back_makes_no_rate_of_what_it_holds():
    now = [shard(12.0, inserted=110), shard(502.0, inserted=10**9)]
    for before in (None, shard(500.0, "b", inserted=7)):
        frame = frame_between([shard(10.0, inserted=10), before], now)
        assert frame["tables"][0]["in_per_s"] == 0.0  # its own, until both can be compared
        assert frame["tables"][0]["inserted"] == 10**9 + 110


def test_a_load_makes_no_rate_of_what_it_brings():
    before, now = shard(10.0, inserted=10), shard(12.0, inserted=10**6, inserted_total=110)
    frame = frame_between([before], [now])
    assert frame["tables"][0]["in_per_s"] == 50.0
    assert [row["in_per_s"] for row in frame["shards"]] == [50.0]


def test_a_shard_that_goes_leaves_the_rates_of_the_others():
    frame = frame_between(
        [shard(10.0, inserted=10), shard(500.0, inserted=10**9)], [shard(12.0, inserted=110), None]
    )
    assert frame["tables"][0]["in_per_s"] == 50.0
    said = frame["headlines"][0]
    assert said["tone"] == "bad"
    assert said["text"].startswith("shard-1 (silent, tcp://node1:5555) does not answer")
    assert [row["state"] for row in frame["shards"]] == ["serving", "silent"]


def test_a_headline_names_the_shards_in_which_learners_wait_and_why():
    why = "reader 1: 5 items, and a batch needs 32"
    waiting = {"readers": 1, "waiting": [why]}
    frame = frame_between(
        [shard(10.0, **waiting), shard(10.0, **waiting), shard(10.0)],
        [
            shard(12.0, readers_blocked_s=0.2, **waiting),
            shard(12.0, readers_blocked_s=1.0, **waiting),
            shard(12.0),
        ],
    )
    assert frame["headlines"] == [
        {
            "tone": "wait",
            "text": "Learners wait for actors in replay, 20% of the time (shard-1 50%, shard-0 "
            f"10%): shard-1 {why}",
        }
    ]


def test_a_learner_with_a_reader_at_each_shard_is_one_learner():
    shards = [shard(10.0, readers=2) for _ in range(3)]
    (table,) = frame_between(shards, shards)["tables"]
    assert (table["readers"], table["learners"]) == (6, 2)


def test_a_headline_names_the_shard_in_which_actors_wait_also_one_of_many():
    frame = frame_between(
        [shard(10.0, writers=1) for _ in range(40)],
        [
            shard(12.0, writers=1, writers_blocked_s=2.0 * (i == 7), queued_rows=5 * (i == 7))
            for i in range(40)
        ],
    )
    (said,) = frame["headlines"]
    assert said["text"] == (
        "Actors wait for learners in replay, 2% of the time (shard-7 100%): 5 rows are queued"
    )


def test_the_state_of_a_shard_is_what_it_answers():
    cluster = {
        "shards": {
            "shard-0": shard_status(0, feeder_status(draining=True)),
            "shard-1": shard_status(1, None),
            "shard-2": shard_status(2, feeder_status()),
        },
    }
    assert [one["state"] for one in merged(cluster)["shards"]] == [
        "draining", "silent", "serving",
    ]  # fmt: skip


def test_a_history_goes_on_when_no_shard_answers():
    statuses = iter([cluster_status(shard(1.0)), cluster_status(None), cluster_status(shard(3.0))])
    history = History(lambda: next(statuses))
    for _ in range(3):
        history.note()
    points = json.loads(history.points())
    assert [list(one["tables"]) for one in points] == [["replay"], [], ["replay"]]
    assert json.loads(history.newest())["address"] == "cluster, 1 of 1 shards answer"
