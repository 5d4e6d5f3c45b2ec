"""What the page shows at one moment, from two statuses: counts, rates, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from async_loader.feeder.status_view import client_name, client_state, rate, seconds_between

Status = Mapping[str, Any]

WAITS_FROM = 0.05
"""A side that was blocked for a smaller share of the time does not count as waiting."""


def frame_of(status: Status, before: Status | None) -> dict[str, Any]:
    """Return the page's values.

    Parameters
    ----------
    status : Status
        See `FeederStatus`.
    before : Status, optional
        Rates and shares of the time are since then; without it they are the feeder's own, over its
        last seconds.
    """
    if before is not None and before["incarnation"] != status["incarnation"]:
        before = None
    seconds = seconds_between(before, status)
    tables = [
        _table(name, one, (before or {}).get("tables", {}).get(name), seconds)
        for name, one in status["tables"].items()
    ]
    old = {one["id"]: one for one in (before or {}).get("sessions", ())}
    clients = [_client(one, old.get(one["id"]), seconds) for one in status["sessions"]]
    return {
        "address": status["address"],
        "pid": status["pid"],
        "incarnation": status["incarnation"],
        "uptime_s": status["uptime_s"],
        "draining": status["draining"],
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
        "headlines": [text for table in tables for text in table["headlines"]],
    }


def _table(name: str, one: Status, old: Status | None, seconds: float) -> dict[str, Any]:
    in_per_s, out_per_s = one["inserts_per_s"], one["samples_per_s"]
    blocked = {"readers": 0.0, "writers": 0.0}
    if old is not None and seconds > 0:
        in_per_s = rate(one, old, "inserted", seconds)
        out_per_s = rate(one, old, "sampled", seconds)
        blocked = {side: min(1.0, rate(one, old, f"{side}_blocked_s", seconds)) for side in blocked}
    counts = (
        "size",
        "capacity",
        "inserted",
        "sampled",
        "deleted",
        "nbytes",
        "samples_per_insert",
        "writers",
        "readers",
        "queued_rows",
        "queue_age_s",
        "waiting",
        "policies",
    )
    found = {key: one[key] for key in counts}
    found |= {
        "name": name,
        "stale": sum(one["stale"].values()),
        "in_per_s": in_per_s,
        "out_per_s": out_per_s,
        "blocked": blocked,
    }
    return {**found, "headlines": _headlines(found)}


def _headlines(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return sentences that say who waits for whom in a table."""
    name, blocked, said = table["name"], table["blocked"], []
    reasons = [text for text in table["waiting"] if "insert" not in text.split(":")[0]]
    if table["readers"] and blocked["readers"] >= WAITS_FROM:
        why = f": {reasons[0]}" if reasons else ""
        said.append(
            {
                "tone": "wait",
                "text": f"Learners wait for actors in {name}, {blocked['readers']:.0%} of the "
                f"time{why}",
            }
        )
    if blocked["writers"] >= WAITS_FROM:
        said.append(
            {
                "tone": "wait",
                "text": f"Actors wait for learners in {name}, {blocked['writers']:.0%} of the "
                f"time: {table['queued_rows']:,} rows are queued",
            }
        )
    if not table["writers"] and not table["readers"]:
        said.append({"tone": "idle", "text": f"{name} has neither writers nor readers"})
    elif not said:
        said.append({"tone": "flow", "text": f"{name}: neither side waits"})
    return said


def _client(one: Status, old: Status | None, seconds: float) -> dict[str, Any]:
    state, since_s = client_state(one)
    rates: dict[str, float | None] = {"rows_per_s": None, "batches_per_s": None}
    if old is not None and seconds > 0:
        rates = {
            "rows_per_s": rate(one, old, "rows_in", seconds),
            "batches_per_s": rate(one, old, "batches_out", seconds),
        }
    return {
        "id": one["id"],
        "name": client_name(one),
        "process": f"{one['host']}:{one['pid']}",
        "state": state,
        "silent_s": since_s,
        "age_s": one["age_s"],
        "writers": one["writers"],
        "readers": one["readers"],
        **rates,
    }
