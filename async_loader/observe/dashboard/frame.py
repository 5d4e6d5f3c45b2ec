"""What the page shows at one moment, from two statuses: counts, rates, and who waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from async_loader.feeder.status_view import client_name, client_state, rate, seconds_between

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
