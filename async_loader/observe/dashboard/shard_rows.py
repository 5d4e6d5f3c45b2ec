"""The shards of a cluster, a row each: counts, rates, and which of its tables is waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from async_loader.feeder.status_view import rate

Status = Mapping[str, Any]
SIDES = ("readers", "writers")


def blocked_shares(
    one: Status, old: Status | None, seconds: float, parts: int = 1
) -> dict[str, float]:
    """Return the share of the time in which each side waited for a table, of ``parts`` shards."""
    if old is None or seconds <= 0:
        return dict.fromkeys(SIDES, 0.0)
    return {side: min(1.0, rate(one, old, f"{side}_blocked_s", seconds) / parts) for side in SIDES}


def shard_rows(status: Status, before: Status | None, seconds: float) -> list[dict[str, Any]]:
    """Return the rows by number; none for a feeder."""
    old = {one["name"]: one["tables"] for one in (before or {}).get("shards", ())}
    return [_row(one, old.get(one["name"], {}), seconds) for one in status.get("shards", ())]


def _row(shard: Status, old: Status, seconds: float) -> dict[str, Any]:
    tables = shard["tables"]
    sizes = [one["nbytes"] for one in tables.values()]
    blocked = {name: blocked_shares(one, old.get(name), seconds) for name, one in tables.items()}
    return {
        "name": shard["name"],
        "state": shard["state"],
        "answers": shard["answers"],
        "address": shard["address"],
        "host": shard["host"],
        "items": sum(one["size"] for one in tables.values()),
        "in_per_s": _per_s(tables, old, "inserted", "inserts_per_s", seconds),
        "out_per_s": _per_s(tables, old, "sampled", "samples_per_s", seconds),
        "nbytes": None if None in sizes else sum(sizes),
        "actors": sum(one["writers"] for one in tables.values()),
        "learners": sum(one["readers"] for one in tables.values()),
        "queued_rows": sum(one["queued_rows"] for one in tables.values()),
        "waiting": [f"{name}: {text}" for name, one in tables.items() for text in one["waiting"]],
        "blocked": blocked,
        "waited": {
            side: max((one[side] for one in blocked.values()), default=0.0) for side in SIDES
        },
    }


def _per_s(tables: Status, old: Status, count: str, per_s: str, seconds: float) -> float:
    """Return a rate since the status before; without it the feeder's own."""
    return sum(
        rate(one, old[name], count, seconds) if name in old and seconds > 0 else float(one[per_s])
        for name, one in tables.items()
    )


def waiting_shards(
    rows: Sequence[Status], table: str, side: str, least: float
) -> list[tuple[str, float]]:
    """Return the shards in which a side waits for a table, and its shares: the worst first."""
    found = [
        (row["name"], row["blocked"][table][side])
        for row in rows
        if table in row["blocked"] and row["blocked"][table][side] >= least
    ]
    return sorted(found, key=lambda one: -one[1])


def silent_lines(rows: Sequence[Status]) -> list[dict[str, str]]:
    """Return sentences on the shards that do not answer."""
    return [
        {
            "tone": "bad",
            "text": f"{row['name']} ({row['state']}, {row['address']}) does not answer: its rows "
            "are not counted",
        }
        for row in rows
        if not row["answers"]
    ]
