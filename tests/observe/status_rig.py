"""Statuses that are made up: of feeders, and of clusters of them."""

from __future__ import annotations

from hypothesis import strategies as st

counts = st.integers(0, 10**9)
seconds = st.integers(0, 10**6).map(float)
texts = st.sampled_from(["reader 1: 5 items, and a batch needs 32", "insert of client 2: full"])
COUNTS = (
    "size", "inserted", "sampled", "deleted", "writers", "readers", "rows_in", "duplicates",
    "queued_rows", "queued_bytes", "rows_out", "batches_out", "redelivered",
)  # fmt: skip
RATES = (
    "inserts_per_s", "samples_per_s", "writers_blocked_s", "readers_blocked_s",
)  # fmt: skip


def table_status(**changes):
    return {
        **dict.fromkeys(COUNTS, 0),
        **dict.fromkeys(RATES, 0.0),
        "capacity": 1000, "nbytes": 4096, "samples_per_insert": 0.0, "waiting": [], "policies": {},
        "queue_age_s": 0.0, "stale": {}, "full": False, "writers_wait": 0.0, "readers_wait": 0.0,
        **changes,
    }  # fmt: skip


def session_status(number, **changes):
    return {
        "id": number, "pid": 1000 + number, "host": "node7.cluster.example", "user": None,
        "role": "actor",
        "name": f"actor-{number}", "user_agent": f"actor-{number} async_loader/0.1",
        "state": "connected", "age_s": 60.0, "silent_s": 0.5, "connected": True, "writers": 1,
        "readers": 0, "rows_in": 100, "batches_out": 0, "rows_per_s": 0.0, "batches_per_s": 0.0,
        "in_flight_bytes": 0, "lag": None,
        **changes,
    }  # fmt: skip


def feeder_status(**changes):
    found = {
        "incarnation": "a", "pid": 99, "address": "tcp://node1:5555", "version": 5,
        "connections": {"open": 1}, "uptime_s": 75.0, "draining": False,
        "tables": {"replay": table_status()}, "sessions_ended": {"left": 0, "died": 0, "lost": 0},
        "sessions": [], "sessions_died": [], "checkpoints": {}, "weights": {}, "weights_stale": 0,
        "weights_waiting": {}, "weights_age_s": {}, "counters": {},
        **changes,
    }  # fmt: skip
    return {"sessions_open": len(found["sessions"]), **found}


def shard_status(number, status):
    return {
        "number": number,
        "address": f"tcp://node{number}:5555",
        "host": f"node{number}",
        "connected": status is not None,
        "status": status,
    }


def cluster_status(*statuses):
    """A cluster of shards with these statuses; ``None``: silent."""
    shards = {f"shard-{i}": shard_status(i, one) for i, one in enumerate(statuses)}
    return {"version": 0, "shards": shards}


@st.composite
def tables(draw):
    lag = st.fixed_dictionaries({"newest": counts, "oldest": counts}, optional={"lag": counts})
    return table_status(
        **{key: draw(counts) for key in COUNTS},
        **{key: draw(seconds) for key in RATES},
        capacity=draw(st.none() | counts),
        nbytes=draw(st.none() | counts),
        queue_age_s=draw(seconds),
        waiting=draw(st.lists(texts, max_size=3)),
        stale=draw(st.dictionaries(st.sampled_from(["came_old", "became_old"]), counts)),
        policies=draw(st.dictionaries(st.sampled_from(["policy", "critic"]), lag)),
    )


@st.composite
def feeders(draw):
    """A feeder; clients of a few processes, so that some are in several."""
    ids = draw(st.lists(st.integers(0, 500), unique=True, max_size=6))
    sessions = [
        session_status(
            draw(st.integers(0, 3)),
            id=number,
            connected=draw(st.booleans()),
            silent_s=draw(seconds),
            **{
                key: draw(counts)
                for key in ("writers", "readers", "rows_in", "batches_out", "in_flight_bytes")
            },
        )
        for number in ids
    ]
    names = st.sampled_from(["replay", "rollouts"])
    return feeder_status(
        tables=draw(st.dictionaries(names, tables())),
        sessions=sessions,
        sessions_open=len(sessions) + draw(st.integers(0, 5)),
        sessions_ended={"left": draw(counts), "died": draw(counts), "lost": draw(counts)},
        draining=draw(st.booleans()),
        uptime_s=draw(seconds),
        weights=draw(st.dictionaries(st.just("policy"), counts)),
        counters=draw(st.dictionaries(st.sampled_from(["messages", "bytes"]), counts)),
    )


def clusters():
    return st.lists(st.none() | feeders(), min_size=1, max_size=4).map(
        lambda found: cluster_status(*found)
    )
