"""The statuses of a cluster's shards as one status, in a feeder's form: sums, and who is where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

Status = Mapping[str, Any]
_LARGEST = {"uptime_s", "queue_age_s", "newest", "lag", "lag_s", "batch_lag"}
_SMALLEST = {"version", "oldest"}
_OF_CLIENTS = ("writers", "readers", "rows_in", "batches_out", "in_flight_bytes")
_NUMBER_AT = 32
"""Bits of a session's id that are below the number of its shard."""
_NONE: Status = {
    "version": 0,
    "connections": {},
    "uptime_s": 0.0,
    "draining": False,
    "tables": {},
    "sessions_ended": {},
    "weights_stale": 0,
    "weights_waiting": {},
    "counters": {},
}
"""Of a cluster of which no shard answers."""


def merged(cluster: Status) -> dict[str, Any]:
    """Return one `FeederStatus` of a `ClusterStatus`.

    Counts, rates and seconds are sums over the shards that answered, ages and lags the largest.
    What waits begins with the name of its shard. Sessions with the same host, process, name and key
    are one client, with the names of the ``shards`` that it writes or reads.
    ``shards`` are all shards by number, also those that did not answer; a table's ``shards`` are
    the number of those that have it.
    """
    there = sorted(cluster["shards"].items(), key=lambda one: (one[1]["number"], one[0]))
    parts = [(name, one["number"], one["status"]) for name, one in there if one["status"]]
    statuses = [status for *_, status in parts]
    known = [
        {key: status[key] for key in _NONE if key != "tables"}
        | {"tables": {table: _of_shard(name, one) for table, one in status["tables"].items()}}
        for name, _, status in parts
    ]
    found = {**_NONE, **_merged("", known)}
    for table in found["tables"].values():
        sampled, inserted = table["sampled"], table["inserted"]
        table["samples_per_insert"] = sampled / inserted if inserted else 0.0
    sessions = _clients(parts)
    unlisted = [one["sessions_open"] - len(one["sessions"]) for one in statuses]
    return {
        **found,
        "incarnation": "cluster",
        "pid": 0,
        "address": f"cluster, {len(parts)} of {len(there)} shards answer",
        "sessions_open": len(sessions) + max(unlisted, default=0),
        "sessions": sessions,
        "checkpoints": {
            f"{name}/{table}": one
            for name, _, status in parts
            for table, one in status["checkpoints"].items()
        },
        "weights": _by_name(max, (one["weights"] for one in statuses)),
        "weights_age_s": _by_name(min, (one["weights_age_s"] for one in statuses)),
        "shards": [_shard(name, one) for name, one in there],
    }


def paired(status: Status, before: Status | None) -> tuple[Status, Status | None]:
    """Return two statuses to be compared: those of a feeder as they are, a cluster's merged.

    While a shard is new since ``before``, or has started anew, the second one is ``None``: rates do
    not count the rows that it had already.
    """
    if not is_cluster(status):
        return status, before
    earlier = None if before is None else _earlier(status["shards"], before["shards"])
    return merged(status), None if earlier is None else merged({"shards": earlier})


def is_cluster(status: Status) -> bool:
    """Return whether this is a `ClusterStatus`."""
    return "shards" in status and "tables" not in status


def _earlier(now: Status, before: Status) -> dict[str, Any] | None:
    """Return what the shards of ``now`` that answer were before; ``None``: some were not there."""
    found = {}
    for name, one in now.items():
        status, old = one["status"], (before.get(name) or {}).get("status")
        if status is not None:
            if old is None or old["incarnation"] != status["incarnation"]:
                return None
            found[name] = {**one, "status": old}
    return found or None


def _of_shard(shard: str, table: Status) -> dict[str, Any]:
    waiting = [f"{shard} {text}" for text in table["waiting"]]
    return {**table, "waiting": waiting, "full": table.get("full", False), "shards": 1}


def _merged(key: str, parts: Sequence[Any]) -> Any:
    """Return the values of one key in several statuses as one value."""
    if not parts:
        return {}
    if isinstance(parts[0], Mapping):
        names = sorted({name for one in parts for name in one})
        return {name: _merged(name, [one[name] for one in parts if name in one]) for name in names}
    if key == "waiting":
        return list(chain.from_iterable(parts))
    if isinstance(parts[0], Sequence):
        return [sum(column) for column in zip_longest(*parts, fillvalue=0)]
    if None in parts:
        return None
    if isinstance(parts[0], bool):
        return all(parts)
    add = max if key in _LARGEST else min if key in _SMALLEST else sum
    return add(parts)


def _by_name(pick: Any, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = defaultdict(list)
    for one in parts:
        for name, value in one.items():
            found[name].append(value)
    return {name: pick(found[name]) for name in sorted(found)}


def _clients(parts: Sequence[tuple[str, int, Status]]) -> list[dict[str, Any]]:
    """Return one session for each client, by id."""
    found: dict[object, list[tuple[str, Status]]] = defaultdict(list)
    for name, number, status in parts:
        for one in status["sessions"]:
            client = one["host"], one["pid"], one["user_agent"], one["user"]
            found[client].append((name, {**one, "id": (number << _NUMBER_AT) + one["id"]}))
    return sorted(map(_client, found.values()), key=lambda one: one["id"])


def _client(parts: Sequence[tuple[str, Status]]) -> dict[str, Any]:
    """Return one session: it has died where it has died for one shard that it writes or reads."""
    every = sorted((one for _, one in parts), key=lambda one: one["id"])
    busy = [(name, one) for name, one in parts if one["writers"] or one["readers"]]
    heard = [one for _, one in busy] or every
    lags = [one["lag"] for _, one in busy if one.get("lag") is not None]
    return {
        **every[0],
        **{key: sum(one[key] for one in every) for key in _OF_CLIENTS},
        "age_s": max(one["age_s"] for one in every),
        "silent_s": max(one["silent_s"] for one in heard),
        "connected": all(one["connected"] for one in heard),
        "lag": max(lags, default=None),
        "shards": list(dict.fromkeys(name for name, _ in busy)),
    }


def _shard(name: str, one: Status) -> dict[str, Any]:
    """Return a row of the list of shards; with its tables, from which its counts are."""
    status = one["status"]
    return {
        "name": name,
        "state": "silent" if status is None else "draining" if status["draining"] else "serving",
        "answers": status is not None,
        "address": one["address"],
        "host": one["host"],
        "tables": {} if status is None else status["tables"],
    }
