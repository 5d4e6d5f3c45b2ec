"""What the page shows at one moment, from two statuses: counts, rates, and who waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from async_loader.feeder.status_view import client_name, client_state, rate, seconds_between
from async_loader.observe.dashboard.shard_rows import (
    blocked_shares,
    shard_rows,
    silent_lines,
    waiting_shards,
)

Status = Mapping[str, Any]

WAITS_FROM = 0.05
"""A side that was blocked for a smaller share of the time does not count as waiting."""
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
    shards = shard_rows(status, before, seconds)
    tables = [
        _table(name, one, (before or {}).get("tables", {}).get(name), seconds, shards)
        for name, one in status["tables"].items()
    ]
    old = {one["id"]: one for one in (before or {}).get("sessions", ())}
    clients = [_client(one, old.get(one["id"]), seconds) for one in status["sessions"]]
    return {
        **{key: status[key] for key in ("address", "pid", "incarnation", "uptime_s", "draining")},
        "clients_open": status["sessions_open"],
        "clients_ended": status["sessions_ended"],
        "tables": tables,
        "clients": clients,
        "weights": [
            {
                "name": name,
                "version": version,
                "age_s": status["weights_age_s"].get(name),
                "waiting": status["weights_waiting"].get(name, 0),
            }
            for name, version in status["weights"].items()
        ],
        "headlines": [
            *silent_lines(shards),
            *(text for table in tables for text in table["headlines"]),
        ],
        "shards": shards,
    }


def _table(
    name: str, one: Status, old: Status | None, seconds: float, shards: Sequence[Status]
) -> dict[str, Any]:
    in_per_s, out_per_s = one["inserts_per_s"], one["samples_per_s"]
    if old is not None and seconds > 0:
        in_per_s = rate(one, old, "inserted", seconds)
        out_per_s = rate(one, old, "sampled", seconds)
    found = {
        **one,
        "full": one.get("full", False),
        "name": name,
        # in a cluster a learner has a reader at each shard
        "learners": math.ceil(one["readers"] / one.get("shards", 1)),
        "stale": sum(one["stale"].values()),
        "in_per_s": in_per_s,
        "out_per_s": out_per_s,
        "blocked": blocked_shares(one, old, seconds, one.get("shards", 1)),
    }
    return {**found, "headlines": _headlines(found, shards)}


def _headlines(table: Mapping[str, Any], shards: Sequence[Status]) -> list[dict[str, str]]:
    """Return sentences that say who waits for whom in a table, and in which shards."""
    name, said = table["name"], []
    learners = waiting_shards(shards, name, "readers", WAITS_FROM)
    actors = waiting_shards(shards, name, "writers", WAITS_FROM)
    reasons = [text for text in table["waiting"] if "insert" not in text.split(":")[0]]
    if learners:  # the reason of the shard that is waited for most
        reasons.sort(key=lambda text: not text.startswith(f"{learners[0][0]} "))
    if table["readers"] and (table["blocked"]["readers"] >= WAITS_FROM or learners):
        why = f": {reasons[0]}" if reasons else ""
        said.append(_wait("Learners wait for actors", table, "readers", learners) + why)
    if table["blocked"]["writers"] >= WAITS_FROM or actors:
        rows = f": {table['queued_rows']:,} rows are queued"
        said.append(_wait("Actors wait for learners", table, "writers", actors) + rows)
    lines = [{"tone": "wait", "text": text} for text in said]
    if not table["writers"] and not table["readers"]:
        lines.append({"tone": "idle", "text": f"{name} has neither writers nor readers"})
    elif not said:
        lines.append({"tone": "flow", "text": f"{name}: neither side waits"})
    return lines


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
