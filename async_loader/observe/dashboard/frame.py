"""What the page and the terminal show at one moment: a status, and sentences that say who waits.
The statuses of a cluster's shards become one in a feeder's form before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Status = Mapping[str, Any]
WAITS_FROM = 0.05
"""A side that was blocked for a smaller share of the time does not count as waiting."""
_NAMED = 3
"""Shards that a sentence names."""
STATES = {"died": 0, "silent": 1, "connected": 2, "left": 3}
"""Of clients: the worst first."""
_PICK: dict[str, Any] = {
    **dict.fromkeys(
        ("uptime_s", "age_s", "silent_s", "queue_age_s", "newest", "lag", "batch_lag"), max
    ),
    **dict.fromkeys(("oldest", "id", "pid"), min),
}
"""How numbers of several shards become one; others are added."""
_EMPTY: Status = {
    "uptime_s": 0.0,
    "draining": False,
    "sessions_died": [],
    **{
        key: {}
        for key in ("tables", "sessions_ended", "weights", "weights_age_s", "weights_waiting")
    },
}
"""What is shown of a shard beside its clients; and of a cluster of which no shard answers."""
_WAITS = ("writers_wait", "readers_wait")


def frame_of(status: Status) -> dict[str, Any]:
    """Return a `FeederStatus`, or the one of a `ClusterStatus`, with ``headlines`` and without
    watchers.
    """
    whole = merged(status) if "shards" in status else {**status, "shards": []}
    shown = [one for one in whole["sessions"] if one["role"] != "watcher"]
    whole["sessions_open"] -= len(whole["sessions"]) - len(shown)
    whole["sessions"], shards = shown, whole["shards"]
    whole["headlines"] = [
        (
            "bad",
            f"{one['name']} (silent, {one['address']}) does not answer: its rows are not counted",
        )
        for one in shards
        if one["state"] == "silent"
    ]
    for name, table in whole["tables"].items():
        whole["headlines"] += _headlines(name, table, shards)
    return whole


# -- a cluster -------------------------------------------------------------------------------------


def merged(cluster: Status) -> dict[str, Any]:
    """Return one `FeederStatus` of a `ClusterStatus`.

    Counts and rates are sums over the shards that answered, ages and lags the largest, shares of
    the time means. What waits begins with the name of its shard. Sessions with the same host,
    process, name and key are one client, with the ``shards`` that it writes or reads.
    ``shards`` are all shards by number, also those that did not answer; a table's ``shards`` are
    the number of those that have it.
    """
    there = cluster["shards"]
    parts = {name: one["status"] for name, one in there.items() if one["status"]}
    statuses = parts.values()
    whole = {**_EMPTY, **_merged("", [_of_shard(*one) for one in parts.items()])}
    for table in whole["tables"].values():
        table["samples_per_insert"] = table["sampled"] / max(1, table["inserted"])
        for side in _WAITS:
            table[side] /= table["shards"]
    clients: dict[object, list[Status]] = defaultdict(list)
    for name, status in parts.items():
        for one in status["sessions"]:
            client = one["host"], one["pid"], one["user_agent"], one["user"]
            uses = one["writers"] or one["readers"]
            clients[client].append({**one, "shards": {name: 1} if uses else {}})
    return {
        **whole,
        "weights": _merged("", [one["weights"] for one in statuses], max),
        "weights_age_s": _merged("", [one["weights_age_s"] for one in statuses], min),
        "incarnation": "cluster",
        "address": f"cluster, {len(parts)} of {len(there)} shards answer",
        "sessions_open": len(clients)
        + max((one["sessions_open"] - len(one["sessions"]) for one in statuses), default=0),
        "sessions": [_merged("", some) for some in clients.values()],
        "shards": [_shard(*one) for one in there.items()],
    }


def _of_shard(name: str, status: Status) -> dict[str, Any]:
    tables = {
        table: {**one, "waiting": [f"{name} {text}" for text in one["waiting"]], "shards": 1}
        for table, one in status["tables"].items()
    }
    return {key: status[key] for key in _EMPTY} | {"tables": tables}


def _merged(key: str, parts: Sequence[Any], pick: Any = None) -> Any:
    """Return the values of one key in several statuses as one value."""
    known = [one for one in parts if one is not None]
    first = next(iter(known), None)
    if isinstance(first, Mapping) or not parts:
        names = sorted(set[str]().union(*known))
        return {name: _merged(name, [one[name] for one in known if name in one], pick)
                for name in names}  # fmt: skip
    if first is None:
        return None
    if isinstance(first, list):
        return [one for part in known for one in part]
    if isinstance(first, str):
        return min(known, key=lambda one: (STATES.get(one, 0), one))  # "actor" before others
    if isinstance(first, bool):
        return all(known)
    return (pick or _PICK.get(key, sum))(known)


def _shard(name: str, one: Status) -> dict[str, Any]:
    """Return the row of a shard."""
    status = one["status"] or _EMPTY
    return {
        "name": name,
        "state": "silent" if status is _EMPTY else "draining" if status["draining"] else "serving",
        "address": one["address"],
        "tables": status["tables"],
    }


# -- who waits -------------------------------------------------------------------------------------


def _headlines(name: str, table: Status, shards: Sequence[Status]) -> list[tuple[str, str]]:
    """Return tones and sentences that say who waits for whom in a table, and in which shards."""
    if not table["writers"] and not table["readers"]:
        return [("idle", f"{name} has neither writers nor readers")]
    lines = []
    if table["readers"] and (text := _waits("readers_wait", name, table, shards)):
        reasons = sorted(
            (one for one in table["waiting"] if "insert" not in one.split(":")[0]),
            key=lambda one: f"({one.split()[0]} " not in text,  # that is waited for most: first
        )
        lines.append(": ".join([f"Learners wait for actors in {text}", *reasons[:1]]))
    if text := _waits("writers_wait", name, table, shards):
        lines.append(
            f"Actors wait for learners in {text}: {table['queued_rows']:,} rows are queued"
        )
    return [("wait", one) for one in lines] or [("flow", f"{name}: neither side waits")]


def _waits(side: str, name: str, table: Status, shards: Sequence[Status]) -> str:
    """Return for how much of the time a side waits, in which shards most; empty: it does not."""
    found = [(one["tables"].get(name, {}).get(side, 0.0), one["name"]) for one in shards]
    worst = sorted((one for one in found if one[0] >= WAITS_FROM), key=lambda one: -one[0])
    if table[side] < WAITS_FROM and not worst:
        return ""
    named = ", ".join(f"{shard} {share:.0%}" for share, shard in worst[:_NAMED])
    more = f", {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return f"{name}, {table[side]:.0%} of the time" + (f" ({named}{more})" if named else "")
