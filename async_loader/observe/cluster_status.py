"""The statuses of a cluster's shards as one status, in a feeder's form: sums, and who is where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from async_loader.observe.cluster_sessions import merged_sessions

Status = Mapping[str, Any]
_SUMS = (
    "size",
    "inserted",
    "sampled",
    "deleted",
    "inserted_total",
    "sampled_total",
    "deleted_total",
    "inserts_per_s",
    "samples_per_s",
    "inserts_per_s_mean",
    "samples_per_s_mean",
    "writers",
    "readers",
    "rows_in",
    "duplicates",
    "gaps",
    "queued_rows",
    "queued_bytes",
    "writers_blocked_s",
    "rows_out",
    "batches_out",
    "redelivered",
    "readers_blocked_s",
)


def merged(cluster: Status) -> dict[str, Any]:
    """Return one `FeederStatus` of a `ClusterStatus`.

    Counts, rates and seconds are sums over the shards that answered, ages and lags the largest.
    What waits begins with the name of its shard. A client is listed once, with the names of the
    ``shards`` that it writes or reads.
    ``shards`` are all shards by number, also those that did not answer; a table's ``shards`` are
    the number of those that have it.
    """
    there = sorted(cluster["shards"].items(), key=lambda one: (one[1]["number"], one[0]))
    parts = [
        (one["number"], name, one["status"]) for name, one in there if one["status"] is not None
    ]
    statuses = [status for *_, status in parts]
    names = dict.fromkeys(name for status in statuses for name in sorted(status["tables"]))
    sessions = merged_sessions([(number, name, one["sessions"]) for number, name, one in parts])
    unlisted = [one["sessions_open"] - len(one["sessions"]) for one in statuses]
    return {
        "incarnation": "cluster",
        "pid": 0,
        "address": f"cluster, {len(parts)} of {len(there)} shards answer",
        "version": min((one["version"] for one in statuses), default=0),
        "connections": _added(one["connections"] for one in statuses),
        "uptime_s": max((one["uptime_s"] for one in statuses), default=0.0),
        "draining": bool(statuses) and all(one["draining"] for one in statuses),
        "tables": {name: _table(name, parts) for name in sorted(names)},
        "sessions_open": len(sessions) + max(unlisted, default=0),
        "sessions_ended": _added(one["sessions_ended"] for one in statuses),
        "sessions": sessions,
        "checkpoints": {
            f"{shard}/{table}": one
            for _, shard, status in parts
            for table, one in status["checkpoints"].items()
        },
        **_weights(statuses),
        "counters": _added(one["counters"] for one in statuses),
        "shards": [_shard(name, one) for name, one in there],
    }


def paired(status: Status, before: Status | None) -> tuple[Status, Status | None]:
    """Return two statuses to be compared: those of a feeder as they are, a cluster's merged.

    A shard that is new since ``before``, or has started anew, is in both with its present counts,
    so that what it had already is no rate.
    """
    if not is_cluster(status):
        return status, before
    earlier = None if before is None else _earlier(status["shards"], before["shards"])
    return merged(status), None if earlier is None else merged({**status, "shards": earlier})


def is_cluster(status: Status) -> bool:
    """Return whether this is a `ClusterStatus`."""
    return "shards" in status and "tables" not in status


def _earlier(now: Status, before: Status) -> dict[str, Any] | None:
    """Return what the shards of ``now`` were before; ``None`` if none can be compared."""
    old: dict[str, Status] = {}
    spans = []
    for name, one in now.items():
        status, last = one["status"], (before.get(name) or {}).get("status")
        if status is None:
            continue
        old[name] = status
        if last is not None and last["incarnation"] == status["incarnation"]:
            old[name] = last
            spans.append(status["uptime_s"] - last["uptime_s"])
    if not spans:
        return None
    span_s = max(spans)  # of all: rates are sums over the same time
    return {
        name: {**one, "status": None}
        if one["status"] is None
        else {**one, "status": {**old[name], "uptime_s": one["status"]["uptime_s"] - span_s}}
        for name, one in now.items()
    }


# -- tables ----------------------------------------------------------------------------------------


def _table(name: str, parts: Sequence[tuple[int, str, Status]]) -> dict[str, Any]:
    tables = [(shard, one["tables"][name]) for _, shard, one in parts if name in one["tables"]]
    each = [one for _, one in tables]
    sums = {key: sum(one[key] for one in each) for key in _SUMS}
    return {
        **sums,
        "capacity": _total(one["capacity"] for one in each),
        "full": all(one.get("full", False) for one in each),
        "nbytes": _total(one["nbytes"] for one in each),
        "samples_per_insert": sums["sampled"] / sums["inserted"] if sums["inserted"] else 0.0,
        "waiting": [f"{shard} {text}" for shard, one in tables for text in one["waiting"]],
        "queue_age_s": max(one["queue_age_s"] for one in each),
        "policies": _by_name([one["policies"] for one in each], _policy),
        "policy_lags": _by_name([one["policy_lags"] for one in each], _policy_lags),
        "stale": _added(one["stale"] for one in each),
        "shards": len(each),
    }


def _policy(lags: Sequence[Status]) -> dict[str, Any]:
    """Return the lag of the writer furthest behind."""
    found: dict[str, Any] = {
        "newest": max(one["newest"] for one in lags),
        "oldest": min(one["oldest"] for one in lags),
    }
    for key in ("lag", "lag_s", "batch_lag"):
        if known := [one[key] for one in lags if key in one]:
            found[key] = max(known)
    return found


def _policy_lags(lags: Sequence[Status]) -> dict[str, Any]:
    counts = [sum(places) for places in zip_longest(*(one["counts"] for one in lags), fillvalue=0)]
    return {"counts": counts, "sum": sum(one["sum"] for one in lags)}


# -- the rest --------------------------------------------------------------------------------------


def _weights(statuses: Sequence[Status]) -> dict[str, Any]:
    """Return the newest version of each name, with the age of its first publication."""
    newest = {
        name: max(one["weights"][name] for one in statuses if name in one["weights"])
        for name in sorted({name for one in statuses for name in one["weights"]})
    }
    ages = {
        name: [
            one["weights_age_s"][name]
            for one in statuses
            if one["weights"].get(name) == version and name in one["weights_age_s"]
        ]
        for name, version in newest.items()
    }
    return {
        "weights": newest,
        "weights_age_s": {name: max(found) for name, found in ages.items() if found},
        "weights_stale": sum(one["weights_stale"] for one in statuses),
        "weights_waiting": _added(one["weights_waiting"] for one in statuses),
    }


def _shard(name: str, one: Status) -> dict[str, Any]:
    """Return a row of the list of shards; with its tables, from which its counts are."""
    status = one["status"]
    state = "silent" if status is None else "draining" if status["draining"] else "serving"
    return {
        "name": name,
        "number": one["number"],
        "state": state,
        "answers": status is not None,
        "address": one["address"],
        "host": one["host"],
        "tables": {} if status is None else status["tables"],
    }


def _by_name(
    parts: Sequence[Status], merge: Callable[[Sequence[Status]], dict[str, Any]]
) -> dict[str, Any]:
    names = sorted({name for one in parts for name in one})
    return {name: merge([one[name] for one in parts if name in one]) for name in names}


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in parts:
        found.update(one)
    return {name: found[name] for name in sorted(found)}


def _total(parts: Iterable[int | None]) -> int | None:
    """Return the sum; ``None`` if one is unknown."""
    found = list(parts)
    return None if None in found else sum(one or 0 for one in found)
