"""What the page shows at one moment, from two statuses: counts, rates, and who waits. The statuses
of a cluster's shards become one in a feeder's form before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from async_loader.feeder.status_view import client_name, client_state, rate, seconds_between

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
        "shards": [_shard_row(name, one) for name, one in there],
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
    return sorted(map(_one_client, found.values()), key=lambda one: one["id"])


def _one_client(parts: Sequence[tuple[str, Status]]) -> dict[str, Any]:
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


def _shard_row(name: str, one: Status) -> dict[str, Any]:
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


Status = Mapping[str, Any]

WAITS_FROM = 0.05
"""A side that was blocked for a smaller share of the time does not count as waiting."""
SIDES = ("readers", "writers")
_SUMS = {
    "items": "size",
    "in_per_s": "in_per_s",
    "out_per_s": "out_per_s",
    "actors": "writers",
    "learners": "readers",
    "queued_rows": "queued_rows",
}
"""What a shard's row has of its tables."""
_RATES = {"rows_per_s": "rows_in", "batches_per_s": "batches_out"}
_NAMED = 3
"""Shards that a sentence names."""


def frame_of(status: Status, before: Status | None) -> dict[str, Any]:
    """Return the page's values.

    Parameters
    ----------
    status : Status
        See `FeederStatus`; of a cluster as `merged` makes it, whose ``shards`` get a row each.
    before : Status, optional
        Rates and shares of the time are since then; without it they are the feeder's own, over its
        last seconds.
    """
    if before is not None and before["incarnation"] != status["incarnation"]:
        before = None
    seconds = seconds_between(before, status)
    of_shards = {one["name"]: one for one in (before or {}).get("shards", ())}
    shards = [_shard(one, of_shards.get(one["name"]), seconds) for one in status.get("shards", ())]
    tables = _tables(status, before, seconds)
    old = {one["id"]: one for one in (before or {}).get("sessions", ())}
    ages, waiting = status["weights_age_s"], status["weights_waiting"]
    return {
        **{key: status[key] for key in ("address", "pid", "incarnation", "uptime_s", "draining")},
        "clients_open": status["sessions_open"],
        "clients_ended": status["sessions_ended"],
        "tables": tables,
        "clients": [_client(one, old.get(one["id"]), seconds) for one in status["sessions"]],
        "weights": [
            {
                "name": name,
                "version": version,
                "age_s": ages.get(name),
                "waiting": waiting.get(name, 0),
            }
            for name, version in status["weights"].items()
        ],
        "headlines": [
            *(_silent(row) for row in shards if not row["answers"]),
            *(line for table in tables for line in _headlines(table, shards)),
        ],
        "shards": shards,
    }


def _table(name: str, one: Status, old: Status | None, seconds: float) -> dict[str, Any]:
    """Return a table's values: rates since ``old``, or without it the feeder's own."""
    parts = one.get("shards", 1)
    in_per_s, out_per_s = one["inserts_per_s"], one["samples_per_s"]
    blocked = dict.fromkeys(SIDES, 0.0)
    if old is not None and seconds > 0:
        in_per_s = rate(one, old, "inserted", seconds)
        out_per_s = rate(one, old, "sampled", seconds)
        for side in SIDES:
            share = rate(one, old, f"{side}_blocked_s", seconds) / parts
            blocked[side] = min(1.0, share)
    return {
        **one,
        "full": one.get("full", False),
        "name": name,
        # in a cluster a learner has a reader at each shard
        "learners": math.ceil(one["readers"] / parts),
        "stale": sum(one["stale"].values()),
        "in_per_s": in_per_s,
        "out_per_s": out_per_s,
        "blocked": blocked,
    }


def _tables(status: Status, before: Status | None, seconds: float) -> list[dict[str, Any]]:
    old = (before or {}).get("tables", {})
    return [_table(name, one, old.get(name), seconds) for name, one in status["tables"].items()]


def _shard(shard: Status, before: Status | None, seconds: float) -> dict[str, Any]:
    """Return the row of a shard."""
    tables = _tables(shard, before, seconds)
    sizes = [one["nbytes"] for one in tables]
    sums = {name: sum(one[key] for one in tables) for name, key in _SUMS.items()}
    waited = {side: max((one["blocked"][side] for one in tables), default=0.0) for side in SIDES}
    return {
        **{key: shard[key] for key in ("name", "state", "answers", "address", "host")},
        **sums,
        "nbytes": None if None in sizes else sum(sizes),
        "waiting": [f"{one['name']}: {text}" for one in tables for text in one["waiting"]],
        "blocked": {one["name"]: one["blocked"] for one in tables},
        "waited": waited,
    }


def _silent(row: Status) -> dict[str, str]:
    where = f"{row['name']} ({row['state']}, {row['address']})"
    return {"tone": "bad", "text": f"{where} does not answer: its rows are not counted"}


def _headlines(table: Status, shards: Sequence[Status]) -> list[dict[str, str]]:
    """Return sentences that say who waits for whom in a table, and in which shards."""
    name, said = table["name"], []
    learners = _waiting(shards, name, "readers")
    actors = _waiting(shards, name, "writers")
    reasons = [text for text in table["waiting"] if "insert" not in text.split(":")[0]]
    if learners:  # the reason of the shard that is waited for most
        reasons.sort(key=lambda text: not text.startswith(f"{learners[0][0]} "))
    if table["readers"] and (table["blocked"]["readers"] >= WAITS_FROM or learners):
        why = f": {reasons[0]}" if reasons else ""
        said.append(_wait("Learners wait for actors", table, "readers", learners) + why)
    if table["blocked"]["writers"] >= WAITS_FROM or actors:
        rows = f": {table['queued_rows']:,} rows are queued"
        said.append(_wait("Actors wait for learners", table, "writers", actors) + rows)
    if not table["writers"] and not table["readers"]:
        return [{"tone": "idle", "text": f"{name} has neither writers nor readers"}]
    lines = [{"tone": "wait", "text": text} for text in said]
    return lines or [{"tone": "flow", "text": f"{name}: neither side waits"}]


def _waiting(rows: Sequence[Status], table: str, side: str) -> list[tuple[str, float]]:
    """Return the shards in which a side waits for a table, and its shares: the worst first."""
    found = [(row["name"], row["blocked"].get(table, {}).get(side, 0.0)) for row in rows]
    return sorted((one for one in found if one[1] >= WAITS_FROM), key=lambda one: -one[1])


def _wait(who: str, table: Status, side: str, shards: Sequence[tuple[str, float]]) -> str:
    text = f"{who} in {table['name']}, {table['blocked'][side]:.0%} of the time"
    if not shards:
        return text
    named = ", ".join(f"{shard} {share:.0%}" for shard, share in shards[:_NAMED])
    more = f", {len(shards) - _NAMED} more" if len(shards) > _NAMED else ""
    return f"{text} ({named}{more})"


def _client(one: Status, old: Status | None, seconds: float) -> dict[str, Any]:
    state, since_s = client_state(one)
    rates = dict.fromkeys(_RATES)
    if old is not None and seconds > 0:
        rates = {name: rate(one, old, key, seconds) for name, key in _RATES.items()}
    return {
        **one,
        "name": client_name(one),
        "process": f"{one['host']}:{one['pid']}",
        "state": state,
        "silent_s": since_s,
        "held_bytes": one["in_flight_bytes"],
        "shards": one.get("shards", []),
        **rates,
    }
