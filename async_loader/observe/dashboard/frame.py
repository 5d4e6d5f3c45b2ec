"""What the page and the terminal show at one moment: a status, and sentences that say who waits.
The statuses of a cluster's shards become one in a feeder's form before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

Status = Mapping[str, Any]
WAITS_FROM = 0.05
"""A side that was blocked for a smaller share of the time does not count as waiting."""
_NAMED = 3
"""Shards that a sentence names."""
STATES = {"died": 0, "silent": 1, "connected": 2, "left": 3}
"""Of clients: the worst first."""
_PICK: dict[str, Any] = {
    **dict.fromkeys(("uptime_s", "age_s", "silent_s", "queue_age_s"), max),
    **dict.fromkeys(("newest", "lag", "batch_lag"), max),
    **dict.fromkeys(("oldest", "id", "pid"), min),
}
"""How numbers of several shards become one; others are added."""
_EMPTY: Status = {
    "uptime_s": 0.0,
    "draining": False,
    "tables": {},
    "sessions_ended": {},
    "weights": {},
    "weights_age_s": {},
    "weights_waiting": {},
}
"""What is shown of a shard beside its clients; and of a cluster of which no shard answers."""
_NUMBER_AT = 32
"""Bits of a session's id that are below the number of its shard."""
_SUMS = ("size", "inserts_per_s", "samples_per_s", "writers", "readers")
_WAITS = ("writers_wait", "readers_wait")


def frame_of(status: Status) -> dict[str, Any]:
    """Return a `FeederStatus`, or the one of a `ClusterStatus`, with ``headlines``."""
    whole = merged(status) if "shards" in status else {**status, "shards": []}
    shards = whole["shards"]
    lines = [
        (
            "bad",
            "{name} ({state}, {address}) does not answer: its rows are not counted".format(**one),
        )
        for one in shards
        if not one["answers"]
    ]
    for name, table in whole["tables"].items():
        lines += _headlines(name, table, shards)
    whole["headlines"] = [{"tone": tone, "text": text} for tone, text in lines]
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
    there = sorted(cluster["shards"].items(), key=lambda one: (one[1]["number"], one[0]))
    parts = [(name, one["number"], one["status"]) for name, one in there if one["status"]]
    statuses = [status for *_, status in parts]
    whole = {**_EMPTY, **_merged("", [_of_shard(name, status) for name, _, status in parts])}
    for table in whole["tables"].values():
        sampled, inserted = table["sampled"], table["inserted"]
        table["samples_per_insert"] = sampled / inserted if inserted else 0.0
        for side in _WAITS:
            table[side] /= table["shards"]
    clients: dict[object, list[Status]] = defaultdict(list)
    for name, number, status in parts:
        for one in status["sessions"]:
            shards = {name: 1} if one["writers"] or one["readers"] else {}
            place = {"id": (number << _NUMBER_AT) + one["id"], "shards": shards}
            client = one["host"], one["pid"], one["user_agent"], one["user"]
            clients[client].append({**one, **place})
    unlisted = [one["sessions_open"] - len(one["sessions"]) for one in statuses]
    return {
        **whole,
        "weights": _merged("", [one["weights"] for one in statuses], max),
        "weights_age_s": _merged("", [one["weights_age_s"] for one in statuses], min),
        "incarnation": "cluster",
        "address": f"cluster, {len(parts)} of {len(there)} shards answer",
        "sessions_open": len(clients) + max(unlisted, default=0),
        "sessions": [_merged("", some) for some in clients.values()],
        "shards": [_shard(name, one) for name, one in there],
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
    first = known[0] if known else None
    if isinstance(first, Mapping) or not parts:
        names = sorted({name for one in known for name in one})
        return {name: _merged(name, [one[name] for one in known if name in one], pick)
                for name in names}  # fmt: skip
    if first is None:
        return None
    if isinstance(first, list):
        return list(chain.from_iterable(known))
    if isinstance(first, str):
        return min(known, key=lambda one: STATES.get(one, 0))
    if isinstance(first, bool):
        return all(known)
    return (pick or _PICK.get(key, sum))(known)


def _shard(name: str, one: Status) -> dict[str, Any]:
    """Return the row of a shard: sums over its tables, and the largest shares."""
    status = one["status"]
    tables = {} if status is None else status["tables"]
    of = tables.values()
    return {
        "name": name,
        "state": "silent" if status is None else "draining" if status["draining"] else "serving",
        "answers": status is not None,
        "address": one["address"],
        "host": one["host"],
        "tables": tables,
        "nbytes": sum(table["nbytes"] or 0 for table in of),
        **{key: sum(table[key] for table in of) for key in _SUMS},
        **{key: max((table[key] for table in of), default=0.0) for key in _WAITS},
    }


# -- who waits -------------------------------------------------------------------------------------


def _headlines(name: str, table: Status, shards: Sequence[Status]) -> list[tuple[str, str]]:
    """Return tones and sentences that say who waits for whom in a table, and in which shards."""
    if not table["writers"] and not table["readers"]:
        return [("idle", f"{name} has neither writers nor readers")]
    lines = []
    if table["readers"] and (text := _waits("readers_wait", name, table, shards)):
        reasons = [one for one in table["waiting"] if "insert" not in one.split(":")[0]]
        # the reason of the shard that is waited for most
        reasons.sort(key=lambda one: f"({one.split()[0]} " not in text)
        lines.append(": ".join([f"Learners wait for actors in {text}", *reasons[:1]]))
    if text := _waits("writers_wait", name, table, shards):
        queued = f"{table['queued_rows']:,} rows are queued"
        lines.append(f"Actors wait for learners in {text}: {queued}")
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
