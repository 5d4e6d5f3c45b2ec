"""The clients of a cluster: a client of several shards has a session in each, and counts once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Session = Mapping[str, Any]
_NUMBER_AT = 32
"""Bits of a session's id that are below the number of its shard."""
_SUMS = ("writers", "readers", "rows_in", "batches_out", "in_flight_bytes")


def merged_sessions(shards: Sequence[tuple[int, str, Sequence[Session]]]) -> list[dict[str, Any]]:
    """Return one session for each client, with the sums of its counts, and its ``shards``.

    Sessions of two shards are those of one client if host, process, name and key are the same; of
    several such in one shard the first goes with the first of the other, and so on.

    Parameters
    ----------
    shards : sequence of (number, name, sessions)
        By number.
    """
    found: dict[object, list[tuple[int, str, Session]]] = defaultdict(list)
    for number, name, sessions in shards:
        seen: dict[object, int] = defaultdict(int)
        for one in sorted(sessions, key=lambda session: session["id"]):
            client = (one["host"], one["pid"], one["user_agent"], one["user"])
            found[client, seen[client]].append((number, name, one))
            seen[client] += 1
    return sorted((_merged(parts) for parts in found.values()), key=lambda one: one["id"])


def _merged(parts: Sequence[tuple[int, str, Session]]) -> dict[str, Any]:
    """Return one session: it has died where it has died for one shard that it writes or reads."""
    number, _, first = parts[0]
    busy = [(name, one) for _, name, one in parts if one["writers"] or one["readers"]]
    told = [one for _, one in busy] or [one for *_, one in parts if one["connected"]]
    told = told or [one for *_, one in parts]
    lags = [one["lag"] for _, one in busy if one.get("lag") is not None]
    return {
        **first,
        **{key: sum(one[key] for *_, one in parts) for key in _SUMS},
        "id": (number << _NUMBER_AT) + first["id"],
        "age_s": max(one["age_s"] for *_, one in parts),
        "silent_s": max(one["silent_s"] for one in told),
        "connected": all(one["connected"] for one in told),
        "lag": max(lags, default=None),
        "shards": [name for name, _ in busy],
    }
